"""Snapshots from messages: one pure function."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace
from typing import Final

from console.view.snapshot import EVENTS_KEPT, GAPS_KEPT, Gap, LinkView, Snapshot
from pipeline.protocol import Beat, Event, History, State, StreamLine


@dataclass(frozen=True)
class Refresh:
    """A state read while the event stream is followed: for plan and agent, which events do not carry.

    The stream may still be behind it, and brings every event between itself.
    """

    state: State


Message = State | Refresh | StreamLine | History | LinkView | Gap

POINTS_KEPT: Final = 2000
QUIET: Final = "reason"
"""Events of this kind change a job's row and get no line of their own."""

FIGURE: Final = "tok_s"
"""The figure that the plot of the overview shows."""


def fold(snapshot: Snapshot, message: Message, now: float) -> Snapshot:
    """The snapshot after ``message``, which arrived at ``now`` by ``console.clock``. Pure; messages in any order."""
    match message:
        case State():
            return _state(snapshot, message, now)
        case Refresh():
            return _refresh(snapshot, message.state, now)
        case StreamLine():
            if message.pruned is not None:  # what comes next follows on what is missing
                snapshot = replace(snapshot, received=now, seq=max(snapshot.seq, message.pruned.before - 1))
            if message.event is not None:
                snapshot = _event(snapshot, message.event, now)
            if message.beat is not None:
                snapshot = _beat(snapshot, message.beat, now)
            return snapshot
        case History():
            return replace(snapshot, history={**snapshot.history, (message.job, message.figure): message})
        case LinkView():
            return replace(snapshot, link=message)
        case Gap():
            return replace(snapshot, gaps=(message, *snapshot.gaps[: GAPS_KEPT - 1]))


def _state(snapshot: Snapshot, state: State, now: float) -> Snapshot:
    # Events of another journal are of another run.
    before = snapshot.agent.journal if snapshot.agent else state.agent.journal
    anew = state.agent.journal != before or state.seq < snapshot.seq
    known = () if anew else snapshot.events
    events = {event.seq: event for event in (*known, *state.events) if event.kind != QUIET}
    folded = replace(
        snapshot,
        run=state.plan.run if state.plan else snapshot.run,
        agent=state.agent,
        plan=state.plan,
        statuses=dict(state.jobs),
        seq=state.seq,
        reported={} if anew else snapshot.reported,
        events=tuple(events[seq] for seq in sorted(events, reverse=True)[:EVENTS_KEPT]),
    )
    return _beat(folded, replace(state.beat, at=max(state.beat.at, state.at)), now)


def _refresh(snapshot: Snapshot, state: State, now: float) -> Snapshot:
    folded = replace(
        snapshot,
        run=state.plan.run if state.plan else snapshot.run,
        agent=state.agent,
        plan=state.plan,
        statuses={name: snapshot.statuses.get(name, status) for name, status in state.jobs.items()},
    )
    return _beat(folded, replace(state.beat, at=max(state.beat.at, state.at)), now)


def _event(snapshot: Snapshot, event: Event, now: float) -> Snapshot:
    if event.seq <= snapshot.seq:
        return replace(snapshot, received=now)
    statuses = snapshot.statuses
    if event.status is not None:
        statuses = {**statuses, event.status.name: event.status}
    return replace(
        snapshot,
        received=now,
        seq=event.seq,
        statuses=statuses,
        events=snapshot.events if event.kind == QUIET else (event, *snapshot.events[: EVENTS_KEPT - 1]),
    )


def _beat(snapshot: Snapshot, beat: Beat, now: float) -> Snapshot:
    history, reported = dict(snapshot.history), dict(snapshot.reported)
    for name, sample in beat.jobs.items():
        progress = sample.progress
        if progress is None:
            continue
        reported[name] = progress
        if FIGURE not in progress.figures:
            continue
        seen = history.get((name, FIGURE), History(name, FIGURE, (), ()))
        if not seen.at or progress.at != seen.at[-1]:
            # Where the host's clock was set back, what the old one dated later has no place in the curve.
            first, end = max(0, len(seen.at) - POINTS_KEPT + 1), bisect.bisect_left(seen.at, progress.at)
            history[name, FIGURE] = History(
                name,
                FIGURE,
                (*seen.at[first:end], progress.at),
                (*seen.values[first:end], progress.figures[FIGURE]),
            )
    return replace(snapshot, received=now, at=beat.at, beat=beat, history=history, reported=reported)
