"""A run followed without a screen: each event as a line, now and then the progress, until nothing moves any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Final

from console.session import Session
from console.view import Snapshot
from console.view.format import count, duration, eta
from console.view.text import clean
from pipeline.protocol import LIVE, JobState, JobStatus, Plan

FINISHED: Final = frozenset({JobState.DONE, JobState.EMPTY, JobState.FAILED, JobState.STOPPED, JobState.LOST})
PROGRESS_S: Final = 10.0
"""Between two rounds of lines on the progress of what runs."""


def settled(plan: Plan, statuses: Mapping[str, JobStatus]) -> bool:
    """Whether nothing moves any more without a person: every batch job has ended, or waits for one that failed."""
    specs = {spec.name: spec for spec in plan.jobs}
    order = TopologicalSorter({name: [need.job for need in spec.needs] for name, spec in specs.items()}).static_order()
    stuck: set[str] = set()
    for name in order:
        status = statuses.get(name)
        if status is None or name not in specs:
            return False
        if status.state in FINISHED:
            if status.state is not JobState.DONE and not status.waived:
                stuck.add(name)
        elif status.state is JobState.WAITING and any(need.job in stuck for need in specs[name].needs):
            stuck.add(name)
        elif not specs[name].service:
            return False
    return True


async def follow(session: Session) -> Snapshot:
    """Print what happens until the run has settled or the host refuses, and return the last snapshot."""
    changed = asyncio.Event()

    def note(_: Snapshot) -> None:
        changed.set()

    task = asyncio.create_task(session.run(note))
    start, seen, shown, link = time.monotonic(), 0, time.monotonic(), ""
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), PROGRESS_S)
            changed.clear()
            if task.done():
                task.result()
            snapshot = session.snapshot
            elapsed = duration(time.monotonic() - start)
            if snapshot.link.detail != link:
                link = snapshot.link.detail
                _say(elapsed, f"link {snapshot.link.state}: {clean(link)}" if link else f"link {snapshot.link.state}")
            for event in reversed([event for event in snapshot.events if event.seq > seen]):
                _say(elapsed, clean(event.text))
                seen = event.seq
            if time.monotonic() - shown >= PROGRESS_S:
                shown = time.monotonic()
                for line in progress_lines(snapshot):
                    _say(elapsed, line)
            if snapshot.link.state == "refused":
                return snapshot  # only a person can help
            if snapshot.plan is not None and settled(snapshot.plan, snapshot.statuses):
                return snapshot
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def progress_lines(snapshot: Snapshot) -> list[str]:
    """A line for every running job that reports progress."""
    lines = []
    for name, sample in (snapshot.beat.jobs if snapshot.beat else {}).items():
        status, progress = snapshot.statuses.get(name), sample.progress
        if status is None or progress is None or status.state not in LIVE:
            continue
        share = f" of {count(progress.total)}" if progress.total is not None else ""
        left = f", {eta(sample.eta)} left" if sample.eta else ""
        lines.append(f"  {name}: {clean(progress.phase)}, {count(progress.done)}{share} {clean(progress.unit)}{left}")
    return lines


def wall_times(snapshot: Snapshot) -> list[tuple[str, float, float]]:
    """(stage, start, end) of every stage that ended, in seconds after the first start; services are left out."""
    spans: dict[str, tuple[float, float]] = {}
    for spec in snapshot.plan.jobs if snapshot.plan else ():
        status = snapshot.statuses.get(spec.name)
        if spec.service or status is None or status.started_at is None or status.ended_at is None:
            continue
        low, high = spans.get(spec.stage, (status.started_at, status.ended_at))
        spans[spec.stage] = (min(low, status.started_at), max(high, status.ended_at))
    zero = min((low for low, _ in spans.values()), default=0.0)
    return [(stage, low - zero, high - zero) for stage, (low, high) in spans.items()]


def _say(elapsed: str, text: str) -> None:
    print(f"{elapsed:>8}  {text}", flush=True)
