"""The journal: plan, jobs, attempts, numbered events, answered requests and marks, in SQLite.

State changes are durable when the call returns (WAL, synchronous=FULL). ``figures`` keeps the history of figures in
the same file.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from pipeline.agent.host import holes
from pipeline.agent.rules.full_disks import DiskNeed
from pipeline.protocol import ActionReply, Attempt, Event, JobStatus, Plan

Kind = TypeVar("Kind")

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS plan (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (job TEXT, number INTEGER, ended INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (job, number));
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS requests (id TEXT PRIMARY KEY, at REAL NOT NULL, reply BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, job TEXT, figure TEXT, UNIQUE (job, figure));
CREATE TABLE IF NOT EXISTS recent (series INTEGER, at REAL, value REAL, PRIMARY KEY (series, at)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (series INTEGER, at REAL, value REAL, PRIMARY KEY (series, at)) WITHOUT ROWID;
"""
IDENTITY: Final = "journal"
REQUESTS_KEPT: Final = 10_000
EVENTS_KEPT: Final = 100_000
"""The newest events, all of which are kept; of older ones the newest of each job is."""
ATTEMPTS_KEPT: Final = 1000  # of a job
PRUNED_AT_ONCE: Final = 1000

SPACE: Final = 4 << 20
"""Bytes of changes that are written although the disk is full."""


def full(error: sqlite3.Error) -> bool:
    """Whether a change may have failed for want of space. Some of SQLite's files meet a full disk as an I/O error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


@dataclass(frozen=True)
class JobRecord:
    """What the journal keeps of a job."""

    status: JobStatus
    wanted: str = "run"  # "run" or "stop": what the operator or the plan wants
    restarts: tuple[float, ...] = ()  # monotonic times that still count against the limit
    due: float = 0.0  # monotonic; when a job in backoff starts again
    boot: str = ""  # the boot those times belong to
    need: int | None = None  # bytes admission sets aside, where more was learned than the plan says
    disk: DiskNeed | None = None  # what must be free before it starts
    stop_by: str = ""  # who asked the running attempt to end
    stop_at: float | None = None  # when, wall time
    again: bool = False  # and whether the job is to start anew then
    kill: bool = False  # and whether it is to end at once
    condemned: str = ""  # why the agent itself ends it for good
    unhealthy: str = ""  # why the agent itself ends it, to be started again
    ready_at: float | None = None  # when its server first answered, monotonic of that boot


class Store:
    """One journal. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.trouble = ""
        """Why the last change could not be written; "" when it was."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when a change could not be written for want of space."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=10.0)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)
        self._open = False
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
        self.seq: int = row[0] if row else 0
        """Number of the newest event."""
        identity = self.mark(IDENTITY, str)
        if identity is None:
            identity = secrets.token_hex(8)
            self.set_mark(IDENTITY, identity)
        self._know_last_events()
        self.identity: str = identity
        """Tells this journal from another one at the same place: numbers of events mean something within one alone."""
        # Held to the end: closing any handle of the file would let go of SQLite's locks on it, and then the next one
        # who looks into the journal by hand would take its WAL for nobody's and remove it.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.reserve()

    def reserve(self) -> None:
        """Take the space of the next changes now, so that a full disk does not keep them from being written."""
        with suppress(OSError):  # none left, or a file system that cannot: then they need luck
            holes.reserve_in(self._file, os.fstat(self._file).st_size + SPACE)
        with suppress(OSError):
            holes.reserve(Path(f"{self.path}-wal"), SPACE)

    def close(self) -> None:
        self._db.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside is there as a whole or not at all. Nested ones join the outer."""
        if self._open:
            yield
            return
        self._open, seq = True, self.seq
        try:
            self._db.execute("BEGIN IMMEDIATE")
            changes = self._db.total_changes
            yield
            self._db.execute("COMMIT")
            if self._db.total_changes > changes:
                self.trouble = ""
        except BaseException as error:
            self.seq = seq
            if isinstance(error, sqlite3.Error):
                self.trouble = str(error)
            if self._db.in_transaction:  # SQLite ends it itself on some errors
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error) and full(error):
                self.on_full()
            raise
        finally:
            self._open = False

    def plan(self) -> Plan | None:
        row = self._db.execute("SELECT body FROM plan").fetchone()
        return msgspec.json.decode(row[0], type=Plan) if row else None

    def set_plan(self, plan: Plan) -> None:
        self._db.execute("INSERT OR REPLACE INTO plan VALUES (1, ?)", (msgspec.json.encode(plan),))

    def jobs(self) -> dict[str, JobRecord]:
        rows = self._db.execute("SELECT name, body FROM jobs").fetchall()
        return {name: msgspec.json.decode(body, type=JobRecord) for name, body in rows}

    def job(self, name: str) -> JobRecord | None:
        row = self._db.execute("SELECT body FROM jobs WHERE name = ?", (name,)).fetchone()
        return msgspec.json.decode(row[0], type=JobRecord) if row else None

    def set_job(self, name: str, record: JobRecord) -> None:
        self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (name, msgspec.json.encode(record)))

    def remove_job(self, name: str) -> None:
        self._db.execute("DELETE FROM jobs WHERE name = ?", (name,))
        self._db.execute("DELETE FROM last_events WHERE job = ?", (name,))

    def set_attempt(self, job: str, attempt: Attempt, *, ended: bool) -> None:
        body = msgspec.json.encode(attempt)
        self._db.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?)", (job, attempt.number, ended, body))
        old = "DELETE FROM attempts WHERE job = ? AND number <= ? AND ended"
        self._db.execute(old, (job, attempt.number - ATTEMPTS_KEPT))

    def attempts(self, job: str) -> tuple[Attempt, ...]:
        """The attempts of a job that are kept, oldest first."""
        rows = self._db.execute("SELECT body FROM attempts WHERE job = ? ORDER BY number", (job,)).fetchall()
        return tuple(msgspec.json.decode(row[0], type=Attempt) for row in rows)

    def last_number(self, job: str) -> int:
        """Of its newest attempt; 0 for a job that never had one."""
        row = self._db.execute("SELECT max(number) FROM attempts WHERE job = ?", (job,)).fetchone()
        return row[0] or 0

    def open_attempts(self) -> list[tuple[str, Attempt]]:
        """Attempts whose end is not journaled."""
        rows = self._db.execute("SELECT job, body FROM attempts WHERE NOT ended ORDER BY job, number").fetchall()
        return [(job, msgspec.json.decode(body, type=Attempt)) for job, body in rows]

    def add_event(self, event: Event) -> Event:
        """Journal an event; it comes back with its number."""
        cursor = self._db.execute("INSERT INTO events (body) VALUES (x'')")
        assert cursor.lastrowid is not None
        self.seq = cursor.lastrowid
        numbered = replace(event, seq=self.seq)
        self._db.execute("UPDATE events SET body = ? WHERE seq = ?", (msgspec.json.encode(numbered), self.seq))
        if event.job:
            self._db.execute("INSERT OR REPLACE INTO last_events VALUES (?, ?)", (event.job, self.seq))
        return numbered

    def events(self, since: int, limit: int) -> list[Event]:
        """Up to ``limit`` events after number ``since``, in order. Numbers are missing where ``prune`` has been."""
        rows = self._db.execute("SELECT body FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (since, limit)).fetchall()
        return [msgspec.json.decode(row[0], type=Event) for row in rows]

    def prune(self, kept: int = EVENTS_KEPT, at_once: int = PRUNED_AT_ONCE) -> int:
        """Remove the oldest events but the newest ``kept`` and the newest of each job; how many went.

        At most ``at_once`` go, so that nobody waits long.
        """
        if self.seq <= kept:
            return 0
        old = "SELECT seq FROM events WHERE seq <= ? AND seq NOT IN (SELECT seq FROM last_events) ORDER BY seq LIMIT ?"
        with self.transaction():
            found = self._db.execute(f"DELETE FROM events WHERE seq IN ({old})", (self.seq - kept, at_once))  # noqa: S608
        return found.rowcount

    def mark(self, name: str, kind: type[Kind]) -> Kind | None:
        """What the agent keeps for itself under a name."""
        row = self._db.execute("SELECT body FROM marks WHERE name = ?", (name,)).fetchone()
        return msgspec.json.decode(row[0], type=kind) if row else None

    def set_mark(self, name: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (name, msgspec.json.encode(value)))

    def reply_to(self, request: str) -> ActionReply | None:
        """The answer a request was given before."""
        row = self._db.execute("SELECT reply FROM requests WHERE id = ?", (request,)).fetchone()
        return msgspec.json.decode(row[0], type=ActionReply) if row else None

    def set_reply(self, request: str, at: float, reply: ActionReply) -> None:
        self._db.execute("INSERT OR REPLACE INTO requests VALUES (?, ?, ?)", (request, at, msgspec.json.encode(reply)))
        kept = "SELECT rowid FROM requests ORDER BY rowid DESC LIMIT 1 OFFSET ?"
        self._db.execute(f"DELETE FROM requests WHERE rowid <= ({kept})", (REQUESTS_KEPT,))  # noqa: S608

    def _know_last_events(self) -> None:
        """Make the table of them; in a journal of an earlier release, find the newest event of each job."""
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'last_events'").fetchone():
            return
        with self.transaction():
            self._db.execute("CREATE TABLE last_events (job TEXT PRIMARY KEY, seq INTEGER NOT NULL)")
            rows = self._db.execute("SELECT seq, body FROM events ORDER BY seq")
            newest = {msgspec.json.decode(body, type=Event).job: seq for seq, body in rows}
            newest.pop("", None)  # events that are of no job
            self._db.executemany("INSERT INTO last_events VALUES (?, ?)", newest.items())
