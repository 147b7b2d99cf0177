"""CPU, memory and percentiles, taken the same way for every supervisor."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Use:
    """What a group of processes uses together while nothing happens. Memory in MiB."""

    processes: int
    cpu_percent: float  # of one core
    rss: float
    private: float
    private_max: float  # of the largest process


def use(groups: Mapping[str, Sequence[int]], seconds: float) -> dict[str, Use]:
    """The use of groups of processes, CPU over ``seconds``."""
    before = {name: sum(map(_cpu_s, pids)) for name, pids in groups.items()}
    began = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    found = {}
    for name, pids in groups.items():
        cpu = 100 * (sum(map(_cpu_s, pids)) - before[name]) / passed
        memory = [_memory(pid) for pid in pids]
        private = [own for _, own in memory]
        found[name] = Use(
            len(pids), round(cpu, 2), round(sum(rss for rss, _ in memory), 1),
            round(sum(private), 1), round(max(private, default=0.0), 1),
        )  # fmt: skip
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _memory(pid: int) -> tuple[float, float]:
    """Resident and private memory in MiB."""
    figures: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        figures[name] = int(value.split()[0]) * 1024
    return figures["Rss"] / MIB, (figures["Private_Clean"] + figures["Private_Dirty"]) / MIB


def percentiles(seconds: Iterable[float]) -> dict[str, float]:
    """Count, p50, p95 and maximum, in milliseconds."""
    ordered = sorted(seconds)
    if not ordered:
        return {"n": 0}

    def at(share: float) -> float:
        return round(1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)

    return {"n": len(ordered), "p50": at(0.5), "p95": at(0.95), "max": round(1000 * ordered[-1], 1)}
