"""Runs every supervisor through the same treatment, and Draftdeck's agent through some more; prints the tables."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.supervision import kills, peers, tables
from benchmarks.supervision.churn import churn
from benchmarks.supervision.jobs import Jobs
from benchmarks.supervision.measure import percentiles, use
from benchmarks.supervision.ours import Draftdeck
from benchmarks.supervision.peers import Peer, Supervisor

JOBS: Final = 16
MANY: Final = 200
SETTLE_S: Final = 1.5
"""The peers count a death within a second of the start as a failed start."""


@dataclass(frozen=True)
class Extent:
    """How long the benchmark looks, and how often it kills."""

    idle_s: float = 12
    job_kills: int = 64
    supervisor_kills: int = 10
    agent_kills: int = 100


QUICK: Final = Extent(idle_s=4, job_kills=16, supervisor_kills=1, agent_kills=5)


def measure(quick: bool = False) -> dict[str, Any]:
    """Run everything, print the tables, and return the figures."""
    extent = QUICK if quick else Extent()
    kinds: list[type[Draftdeck] | type[Peer]] = [Draftdeck, *peers.available()]
    found = {kind.title: one(kind, extent) for kind in kinds}
    tables.supervisors(found)
    print("\ndraftdeck, its agent killed while jobs start and end …", flush=True)
    with room() as folder:
        tally = churn(folder, extent.agent_kills)
    tables.churned(tally)
    print(f"\ndraftdeck with {MANY} jobs …", flush=True)
    with at_work(Draftdeck, MANY) as (agent, _):
        time.sleep(SETTLE_S)
        many = use(agent.processes(), 2 * extent.idle_s)
    tables.crowd(MANY, many)
    return {
        "jobs": JOBS,
        "supervisors": found,
        "agent_killed_while_jobs_start_and_end": tally.figures(),
        f"with_{MANY}_jobs": {name: asdict(figures) for name, figures in many.items()},
    }


def one(kind: type[Draftdeck] | type[Peer], extent: Extent) -> dict[str, Any]:
    """The figures of one supervisor."""
    print(f"{kind.title} …", flush=True)
    with at_work(kind, JOBS) as (supervisor, jobs):
        time.sleep(SETTLE_S)
        idle = use(supervisor.processes(), extent.idle_s)
        took = kills.one_by_one(jobs, extent.job_kills)
        recorded = supervisor.ends_recorded_first(jobs)
        time.sleep(SETTLE_S)
        together = kills.all_at_once(jobs)
    away: Counter[str] = Counter()
    for _ in range(extent.supervisor_kills):
        with at_work(kind, JOBS) as (supervisor, jobs):
            away.update(kills.of_supervisor(supervisor, jobs))
    return {
        "idle": {name: asdict(figures) for name, figures in idle.items()},
        "job_killed_to_running": percentiles(took),
        "ends_recorded_first": recorded,
        "all_jobs_killed_to_last_running_ms": round(1000 * together, 1),
        "supervisor_kills": extent.supervisor_kills,
        **away,
        "comes_back_by_itself": kind.revived,
    }


@contextmanager
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="draftdeck-bench-") as place:
        yield Path(place)


@contextmanager
def at_work(kind: Callable[[Path], Supervisor], count: int) -> Iterator[tuple[Supervisor, Jobs]]:
    """A supervisor whose jobs all run; both are gone afterwards."""
    with room() as folder:
        jobs = Jobs.make(folder, count)
        supervisor = kind(folder)
        try:
            supervisor.start(jobs)
            yield supervisor, jobs
        finally:
            supervisor.close()
            jobs.clean_up()
