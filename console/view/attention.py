"""The first line of the screen: whether a person is needed, the worst thing first, with the key that helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from console.view import format as fmt
from console.view.jobs import JobRow
from console.view.snapshot import Snapshot, Tone
from console.view.text import clean
from pipeline.protocol import HostSample, JobState

MEMORY_SHARE: Final = 0.95
WORTH_S: Final = 30 * fmt.DAY
FEW_INODES: Final = 0.1
MEMORY_PRESSURE: Final = 20.0
IN_WORDS: Final = (
    JobState.RUNNING,
    JobState.READY,
    JobState.STARTING,
    JobState.STOPPING,
    JobState.QUEUED,
    JobState.WAITING,
    JobState.DONE,
    JobState.STOPPED,
)
BACK_FOR_S: Final = 10 * fmt.MINUTE
"""How long a job that crashed and came back by itself is worth a word."""

GAVE_UP: Final = (JobState.LOST, JobState.FAILED, JobState.EMPTY)


@dataclass(frozen=True)
class Attention:
    """One line. ``keys`` says what to press; ``job`` is the one it is about; ``needed`` whether a person is."""

    tone: Tone
    text: str
    keys: str = ""
    job: str = ""
    needed: bool = False


def attention(snapshot: Snapshot, now: float) -> Attention:
    """What the operator should know first at ``now`` by ``console.clock``."""
    return (
        _link(snapshot, now)
        or _crashed(snapshot.jobs)
        or _emptying(snapshot)
        or _ailing(snapshot.jobs)
        or _host(snapshot)
        or _came_back(snapshot)
        or _well(snapshot.jobs, has_plan=snapshot.plan is not None)
    )


def _link(snapshot: Snapshot, now: float) -> Attention | None:
    link, label = snapshot.link, clean(snapshot.host_label, 60)
    detail = clean(link.detail, 200)
    age = snapshot.age(now)
    if link.state == "refused" and link.host_key:
        return Attention(Tone.WARN, f"{label} is new here: {detail}", "a accepts its key", needed=True)
    if link.state == "refused":
        return Attention(Tone.BAD, f"{label} refused: {detail}", "c tries again", needed=True)
    aged = "" if age is None else f" · figures are {fmt.age(age)} old, jobs go on"
    if link.state == "lost":
        since = fmt.duration(now - link.since)
        return Attention(
            Tone.BAD, f"link to {label} lost {since} ago: {detail or 'connecting again'}{aged}", "c tries now"
        )
    if age is None:
        return Attention(Tone.BUSY, f"connecting to {label} … {detail}".rstrip())
    if link.state == "connecting":
        return Attention(Tone.BUSY, f"connecting to {label} …{aged}")
    if link.state == "live" and detail:
        return Attention(Tone.BAD, f"the agent on {label} does not answer: {detail}{aged}", "c tries now")
    if snapshot.stale(now):
        return Attention(Tone.WARN, f"stale: nothing heard from the agent for {fmt.duration(age)} · the link is up")
    return None


def dependents(job: str, jobs: Sequence[JobRow]) -> tuple[str, ...]:
    """The jobs behind ``job``: those that wait for it, directly or through others."""
    blocked = {job}
    grown = True
    while grown:
        more = {row.name for row in jobs if row.name not in blocked and blocked.intersection(row.needs)}
        blocked |= more
        grown = bool(more)
    return tuple(row.name for row in jobs if row.name in blocked and row.name != job)


def _worst(rows: Sequence[JobRow], jobs: Sequence[JobRow]) -> JobRow:
    return max(rows, key=lambda row: len(dependents(row.name, jobs)))


def _about(row: JobRow, jobs: Sequence[JobRow]) -> str:
    held = len(dependents(row.name, jobs))
    waits = f" · {held} job{'s' if held > 1 else ''} wait{'' if held > 1 else 's'} for it" if held else ""
    summary = row.diagnosis.summary if row.diagnosis and not row.why else row.why
    return f"{row.name} {row.state}{': ' if summary else ''}{clean(summary, 200)}{waits}"


def _crashed(jobs: Sequence[JobRow]) -> Attention | None:
    rows = [row for row in jobs if row.state in GAVE_UP and row.failure]
    if not rows:
        return None
    worst = _worst(rows, jobs)
    if len(rows) == 1:
        return Attention(Tone.BAD, f"1 needs you: {_about(worst, jobs)}", "R restarts it", worst.name, needed=True)
    return Attention(
        Tone.BAD, f"{len(rows)} need you: {_about(worst, jobs)}", "R restarts all", worst.name, needed=True
    )


def _emptying(snapshot: Snapshot) -> Attention | None:
    """A dataset of which nothing is kept is wrong long before its last row is read."""
    rows = [row for row in snapshot.datasets if row.going_to_zero]
    if not rows:
        return None
    worst = max(rows, key=lambda row: row.read)
    why = f": {worst.reasons[0][0]}" if worst.reasons else ""
    need = f"{len(rows)} need{'s' if len(rows) == 1 else ''} you"
    text = f"{need}: {worst.job} keeps nothing, 0 of {fmt.count(worst.read)} rows so far{why}"
    return Attention(Tone.BAD, text, "n goes there", worst.job, needed=True)


def _ailing(jobs: Sequence[JobRow]) -> Attention | None:
    stalled = [row for row in jobs if row.state is JobState.STALLED]
    if stalled:
        worst = _worst(stalled, jobs)
        return Attention(
            Tone.WARN, f"{len(stalled)} stalled: {_about(worst, jobs)}", "n goes there", worst.name, needed=True
        )
    again = [row for row in jobs if row.state is JobState.BACKOFF]
    if again:
        worst = _worst(again, jobs)
        return Attention(Tone.WARN, f"{_about(worst, jobs)} · starts again by itself", "R now", worst.name)
    return None


def _host(snapshot: Snapshot) -> Attention | None:
    host = snapshot.host
    if host is not None:
        if host.disk_short:
            return Attention(Tone.WARN, f"1 needs you: the disk is short: {disk_words(host)}", needed=True)
        if host.memory_limit and host.memory_used > MEMORY_SHARE * host.memory_limit:
            text = f"memory nearly full: {fmt.size_of(host.memory_used, host.memory_limit)}"
            return Attention(Tone.WARN, text, needed=True)
        if host.memory_some is not None and host.memory_some > MEMORY_PRESSURE:
            return Attention(Tone.WARN, f"memory pressure: something waited {host.memory_some:.0f} % of the last 10 s")
    if snapshot.agent is not None and not snapshot.agent.keeper:
        return Attention(Tone.WARN, "the agent's keeper is not seen: nothing would restart the agent at night")
    return None


def disk_words(host: HostSample) -> str:
    """What is free, when that is gone at the present rate, and whether the file system runs out of files first."""
    words = f"{fmt.size(host.disk_free)} free"
    if host.disk_left_s is not None and host.disk_left_s < WORTH_S:
        words += f", {fmt.short_duration(host.disk_left_s)} left"
    if host.inodes_free is not None and host.inodes_total and host.inodes_free < FEW_INODES * host.inodes_total:
        words += f", room for {fmt.count(host.inodes_free)} more files"
    return words


def _came_back(snapshot: Snapshot) -> Attention | None:
    """A crash that needs nobody any more, but may be news."""
    back = [
        (row.started_at, row, row.diagnosis)
        for row in snapshot.jobs
        if row.live and row.restarts and row.diagnosis and row.started_at is not None
    ]
    back = [each for each in back if snapshot.at - each[0] <= BACK_FOR_S]
    if not back:
        return None
    at, row, diagnosis = max(back, key=lambda each: each[0])
    ago = fmt.short_duration(snapshot.at - at)
    others = f", {len(back) - 1} more too" if len(back) > 1 else ""
    why = clean(diagnosis.summary, 160)
    if row.service and row.state is not JobState.READY:
        return Attention(Tone.WARN, f"{row.name} is loading again after it ended {ago} ago: {why}", job=row.name)
    text = f"all well, but {row.name} was restarted {row.restarts}× by itself, last {ago} ago{others}: {why}"
    return Attention(Tone.BUSY, text, job=row.name)


def _well(jobs: Sequence[JobRow], *, has_plan: bool) -> Attention:
    if not jobs:
        said = "the plan has no jobs" if has_plan else "no plan on this host yet: draftdeck apply puts one"
        return Attention(Tone.IDLE, said)
    by_state = Counter(row.state for row in jobs)
    waived = sum(bool(row.crashed and row.waived) for row in jobs)
    besides = f", {waived} failed and waived" if waived else ""
    if all(
        row.state is JobState.DONE or (row.service and row.state is JobState.STOPPED) or (row.crashed and row.waived)
        for row in jobs
    ):
        return Attention(Tone.GOOD, f"all done: {by_state[JobState.DONE]} jobs finished{besides}")
    words = ", ".join(f"{by_state[state]} {state}" for state in IN_WORDS if by_state[state]) + besides
    stopped = by_state[JobState.STOPPED]
    if stopped and not any(row.live for row in jobs):
        return Attention(Tone.WARN, f"nothing runs: {words}", "s starts")
    return Attention(Tone.GOOD, f"all well: {words}")
