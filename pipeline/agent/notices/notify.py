"""Which events are worth a message to somebody who is not looking, and what the message says. Pure.

A job that crashes again and again for the same cause is told the first, the fourth, the sixteenth … time, and when it
gave up. Times are the events' own, in UTC; they only tell which crashes belong together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.agent.attempts.logs import plain
from pipeline.protocol import Event, JobSpec, JobState, JobStatus

TOGETHER_S: Final = 1800.0
"""Crashes of a job for one cause less than this apart are one trouble."""
PENDING: Final = 50
"""Notes that wait at most; the newest are kept."""
LINE: Final = 300
TITLE: Final = 120
DATED_S: Final = 12 * 3600.0

WORDS: Final = {
    JobState.FAILED: "failed",
    JobState.EMPTY: "came out empty",
    JobState.LOST: "was lost",
    JobState.STALLED: "stalled",
}

Key = tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """One line of a message. A later note of the same ``key`` takes its place; an empty ``text`` only takes it away."""

    key: Key
    seq: int
    at: float
    text: str
    alarm: bool = True


@dataclass(frozen=True)
class Message:
    """What is posted: ``lines`` oldest first, ``earlier`` ones left out before them."""

    title: str
    lines: tuple[str, ...]
    earlier: int = 0
    alarm: bool = True


class Judge:
    """Fed with every event in order; says which are worth a line. Remembers what repeats itself."""

    def __init__(self) -> None:
        self._repeats: dict[tuple[str, str], tuple[int, float]] = {}
        self._stalled: set[str] = set()
        self._failed: dict[str, int] = {}  # by job whose newest event says so: the attempt that failed

    def take(self, event: Event, specs: Mapping[str, JobSpec], statuses: Mapping[str, JobStatus]) -> list[Note]:
        """The notes of one event. ``specs`` and ``statuses`` are those of the plan now."""
        if event.kind == "host":
            return [_note(("host", str(event.seq)), event, event.text, alarm="no longer" not in event.text)]
        status = event.status
        if event.kind != "state" or status is None:
            return []
        if event.by:  # who did it knows it
            return _finished(event, status, specs, statuses) if status.waived else []
        failed = self._failed.pop(status.name, None)
        end = ("end", status.name, str(status.attempt))
        match status.state:
            case JobState.FAILED | JobState.EMPTY | JobState.LOST:
                self._stalled.discard(status.name)
                self._failed[status.name] = status.attempt
                advice = status.diagnosis.advice if status.diagnosis is not None else ""
                return [_note(end, event, _said(status) + (f" → {advice}" if advice else ""))]
            case JobState.BACKOFF | JobState.QUEUED if status.state is JobState.BACKOFF or failed == status.attempt:
                # It goes on by itself: after a pause, or with more memory.
                self._stalled.discard(status.name)
                cause = status.diagnosis.cause if status.diagnosis is not None else ""
                return [_note(end, event, self._unless_known(status, cause, event.at))]
            case JobState.STALLED:
                words = self._unless_known(status, "stalled", event.at)
                if words:
                    self._stalled.add(status.name)
                return [_note(("stalled", status.name), event, words)] if words else []
            case JobState.RUNNING | JobState.READY if status.name in self._stalled:
                self._stalled.discard(status.name)
                words = "is ready again" if status.state is JobState.READY else "makes progress again"
                return [_note(("again", status.name), event, f"{status.name} {words}", alarm=False)]
            case JobState.DONE:
                self._stalled.discard(status.name)
                return _finished(event, status, specs, statuses)
        return []

    def _unless_known(self, status: JobStatus, cause: str, at: float) -> str:
        """Words for a trouble, "" where it has been told and only goes on."""
        count, last = self._repeats.get((status.name, cause), (0, at))
        count = count + 1 if abs(at - last) < TOGETHER_S else 1
        self._repeats[status.name, cause] = (count, at)
        if count & (count - 1) or count.bit_length() % 2 == 0:  # no power of four
            return ""
        return _said(status) + (f" ({count} times by now)" if count > 1 else "")


class Pending:
    """Notes that wait to be told, oldest first, at most ``PENDING``; counts those it had to let go."""

    def __init__(self) -> None:
        self._notes: dict[Key, Note] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._notes)

    def notes(self) -> tuple[Note, ...]:
        return tuple(self._notes.values())

    def put(self, note: Note) -> None:
        self._notes.pop(note.key, None)
        if not note.text:
            return
        self._notes[note.key] = note
        if len(self._notes) > PENDING:
            del self._notes[next(iter(self._notes))]
            self.dropped += 1

    def settle(self, seq: int) -> None:
        """Let go of all up to an event's number: they were told."""
        self._notes = {key: note for key, note in self._notes.items() if note.seq > seq}
        self.dropped = 0


def compose(
    run: str, host: str, notes: Sequence[Note], now: float, *, earlier: int = 0, repeat: bool = False
) -> Message:
    """One message of all notes. ``repeat``: an agent was killed while it posted them; they may have arrived."""
    alarms = [note for note in notes if note.alarm]
    first = (alarms or notes)[0].text
    rest = f" and {len(notes) - 1} more" if len(notes) > 1 else ""
    lines = tuple(_clipped(f"{_clock(note.at, now)} {note.text}", LINE) for note in notes)
    if repeat:
        lines = ("(this may have been sent before)", *lines)
    where = f"{run} on {host}"
    title = f"{where}: {_clipped(first, max(20, TITLE - len(where) - len(rest)))}{rest}"
    return Message(title, lines, earlier, bool(alarms))


def laid_out(message: Message, limit: int, size: Callable[[str], int] = len, escape: Callable[[str], str] = str) -> str:
    """The lines as one text of at most ``limit``; where not all fit, the newest, and how many are left out."""
    kept: list[str] = []
    room = limit - 60  # for the words on those left out
    for line in reversed(message.lines):
        shown = escape(line)
        room -= size(shown) + 1
        if room < 0:
            break
        kept.insert(0, shown)
    earlier = message.earlier + len(message.lines) - len(kept)
    return "\n".join([f"({earlier} earlier ones left out)", *kept] if earlier else kept)


def _finished(
    event: Event, status: JobStatus, specs: Mapping[str, JobSpec], statuses: Mapping[str, JobStatus]
) -> list[Note]:
    """Notes on a stage and on the run, where the end of this job completed them."""
    spec = specs.get(status.name)
    if spec is None:
        return []
    stage = [one for one in specs.values() if one.stage == spec.stage]
    if not all(_over(one, statuses) for one in stage):
        return []
    waived = sum(statuses[one.name].state is not JobState.DONE for one in stage)
    words = ""
    if len(stage) == 1 and not waived:
        message = status.result.message if status.result is not None else status.reason
        words = f"{status.name} is done" + (f": {message}" if message else "")
    elif len(stage) > 1:
        records = sum(result.records for one in stage if (result := statuses[one.name].result) is not None)
        words = f"{spec.stage} is done: {len(stage) - waived} of {len(stage)} jobs, {records:,} records"
        words += ", the others failed and were waived" if waived else ""
    notes = [_note(("stage", spec.stage), event, words, alarm=False)] if words else []
    batch = [one for one in specs.values() if not one.service and (one.autostart or statuses[one.name].attempt)]
    if all(_over(one, statuses) for one in batch):
        notes.append(_note(("run",), event, f"the run is done: {len(batch)} jobs", alarm=False))
    return notes


def _over(spec: JobSpec, statuses: Mapping[str, JobStatus]) -> bool:
    status = statuses[spec.name]
    return status.state is JobState.DONE or bool(status.waived)


def _said(status: JobStatus) -> str:
    what = f"{status.name} {WORDS[status.state]}" if status.state in WORDS else status.name
    return what + (f": {status.reason}" if status.reason else "")


def _note(key: Key, event: Event, text: str, *, alarm: bool = True) -> Note:
    return Note(key, event.seq, event.at, " ".join(plain(text).split()), alarm)


def _clock(at: float, now: float) -> str:
    return time.strftime("%H:%M UTC" if abs(now - at) < DATED_S else "%d %b %H:%M UTC", time.gmtime(at))


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
