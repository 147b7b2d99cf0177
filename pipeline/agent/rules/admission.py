"""Which queued jobs may start now, by memory and GPUs. Pure.

Left = limit − use − reserve − Σ over running jobs of max(0, need − present memory): what a job was promised and has not
taken yet is not free, so ten jobs that start in one second do not each see an empty machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.protocol import HostSample


@dataclass(frozen=True)
class Demand:
    """A job that wants to start. ``memory`` in bytes, None: not known, counted as nothing."""

    name: str
    memory: int | None = None
    gpus: int = 0


@dataclass(frozen=True)
class Holding:
    """A job that runs: what it was promised, what it uses now (bytes), and its GPUs."""

    name: str
    need: int | None
    present: int
    gpus: int = 0


def memory_left(holdings: Iterable[Holding], host: HostSample, reserve: int) -> int:
    """Bytes that no job has or was promised; negative when the machine is promised away."""
    promised = sum(max(0, (holding.need or 0) - holding.present) for holding in holdings)
    return host.memory_limit - host.memory_used - reserve - promised


def decide(
    demands: Iterable[Demand], holdings: Iterable[Holding], host: HostSample, reserve: int = 0
) -> dict[str, str]:
    """By job: "" if it may start, else why not, in words. Every job admitted here counts against those behind it.

    A job that does not fit lets smaller ones behind it pass.
    """
    holdings = tuple(holdings)
    left = memory_left(holdings, host, reserve)
    gpus = len(host.gpus) - sum(holding.gpus for holding in holdings)
    answers = {}
    for demand in demands:
        need = demand.memory or 0
        answers[demand.name] = _memory_short(need, left, host, reserve) or _gpus_short(demand.gpus, gpus, host)
        if not answers[demand.name]:
            left -= need
            gpus -= demand.gpus
    return answers


def _memory_short(need: int, left: int, host: HostSample, reserve: int) -> str:
    if not need or need <= left:
        return ""
    if need > host.memory_limit - reserve:
        wanted, most = _apart(need, host.memory_limit)
        kept = f" less {in_words(reserve)} reserve" if reserve else ""
        return f"needs {wanted}, this host has {most}{kept}: lower its memory in the config or raise the limit"
    wanted, free = _apart(need, max(0, left))
    return f"needs {wanted}, {free} left"


def _gpus_short(need: int, free: int, host: HostSample) -> str:
    if not need or need <= free:
        return ""
    if not host.gpus:
        return f"needs {_gpus(need)}, none is seen on this host"
    if need > len(host.gpus):
        return f"needs {_gpus(need)}, this host has {len(host.gpus)}: lower its gpus in the config"
    return f"needs {_gpus(need)}, {max(0, free)} free"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def in_words(memory: float, digits: int = 0) -> str:
    """Bytes as "61 GB" (10⁹), or MB below one."""
    if memory < 1e9:
        return f"{memory / 1e6:,.{digits}f} MB"
    return f"{memory / 1e9:,.{digits or (1 if memory < 1e10 else 0)}f} GB"


def _apart(one: int, other: int) -> tuple[str, str]:
    """Two figures with as many digits as it takes to see that they differ."""
    for digits in range(4):
        words = in_words(one, digits), in_words(other, digits)
        if words[0] != words[1]:
            break
    return words
