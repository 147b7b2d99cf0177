"""The state of all jobs, and the only place that changes it: every change is journaled, numbered and announced here."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pipeline.agent.attempts.run import Run
from pipeline.agent.host.disks import Space
from pipeline.agent.rules.full_disks import DiskNeed
from pipeline.agent.rules.gpu_wait import Ledger
from pipeline.agent.store import JobRecord, Store
from pipeline.protocol import (
    STALE_S,
    Attempt,
    Beat,
    Event,
    HostSample,
    JobSample,
    JobSpec,
    JobState,
    JobStatus,
    Plan,
    ServerSample,
)

EVENTS_KEPT: Final = 2000
RETRY_S: Final = 1.0
SLOW_S: Final = 2.0
"""A disk that takes so long to write a change is told of."""

log = logging.getLogger(__name__)


@dataclass
class Job:
    """A job and all the agent knows of it. ``run`` is there exactly while an attempt has not been concluded."""

    spec: JobSpec
    status: JobStatus
    wanted: str = "run"  # "run" or "stop"
    restarts: tuple[float, ...] = ()
    need: int | None = None
    due: float = 0.0  # monotonic; when a job in backoff starts again
    disk: DiskNeed | None = None  # what must be free before it starts
    run: Run | None = None
    sample: JobSample = field(default_factory=JobSample)
    server: ServerSample | None = None
    server_at: float = 0.0  # monotonic; when the server was last looked at
    removed: bool = False
    held: str = ""  # GPU memory or disk space it waits for, in words
    held_since: float = 0.0  # monotonic
    forced: str = ""  # who asked that it starts all the same
    told_at: float = 0.0  # monotonic; of the newest event


@dataclass(frozen=True)
class Death:
    """Of an attempt by a SIGKILL that nobody here asked for. ``at`` is monotonic."""

    job: str
    number: int
    at: float
    counter: str  # the file that counts the kernel's kills where it ran


@dataclass(frozen=True)
class Shown:
    """What readers see, all of it in the journal. Replaced as a whole by every change: any thread may read it."""

    seq: int
    plan: Plan | None
    statuses: Mapping[str, JobStatus]
    events: tuple[Event, ...]  # the newest

    def after(self, since: int, limit: int) -> tuple[Event, ...] | None:
        """Events after number ``since``; None where these do not reach back so far."""
        if since >= self.seq:
            return ()
        if not self.events or self.events[0].seq > since + 1:
            return None
        first = since + 1 - self.events[0].seq
        return self.events[first : first + limit]


class Board:
    """Jobs by name in the plan's order, the plan, the newest events, and who waits for changes.

    One thread changes it; others may call ``beat``, ``listen`` and ``unlisten``, and read ``shown``.
    """

    def __init__(self, store: Store, boot: str) -> None:
        self.store = store
        self.boot = boot
        self.plan: Plan | None = store.plan()
        self.jobs: dict[str, Job] = {}
        self.host: HostSample | None = None
        self.events: deque[Event] = deque(store.events(max(0, store.seq - EVENTS_KEPT), EVENTS_KEPT), EVENTS_KEPT)
        self.closing = False
        self.deaths: deque[Death] = deque(maxlen=200)
        self.spaces: dict[str, Space] = {}  # by path: what was last found free there
        self.remarks: dict[str, str] = {}  # what goes wrong beside the jobs, shown with the host's own remarks
        self.gpus = Ledger(store)
        self.looked_at = 0.0  # monotonic; when the jobs were last looked at
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._changing_since: float | None = None  # monotonic
        self._untold: list[Event] = []  # notes that the journal has not taken yet
        self._writing = asyncio.Lock()
        self._load()
        self.shown = self._show()

    def recall(self, run: Run) -> None:
        """Give the run of an adopted attempt what the journal says was asked of it."""
        record = self.store.job(run.job)
        if record is not None:
            run.stop_by, run.again, run.condemned = record.stop_by, record.again, record.condemned
            run.kill, run.unhealthy, run.stop_at = record.kill, record.unhealthy, record.stop_at
            run.ready_at = record.ready_at if record.boot == self.boot else None

    def _load(self) -> None:
        specs = {spec.name: spec for spec in self.plan.jobs} if self.plan is not None else {}
        kept = self.store.jobs()
        for name in [*specs, *(name for name in kept if name not in specs)]:
            record = kept.get(name)
            if record is None:
                continue
            spec = specs.get(name) or JobSpec(name, "", ())
            restarts, due = (record.restarts, record.due) if record.boot == self.boot else ((), 0.0)
            job = Job(spec, record.status, record.wanted, restarts, record.need, due, record.disk)
            job.removed = name not in specs
            self.jobs[name] = job

    # --- changes ---

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Journal everything inside as a whole; when that fails, plan, jobs, runs and events are as before."""
        if self._changing_since is not None:
            yield
            return
        plan, jobs = self.plan, dict(self.jobs)
        things = [*jobs.values(), *self.runs()]
        before = [dict(vars(thing)) for thing in things]
        untold, self._untold = self._untold, []
        self._changing_since = time.monotonic()
        try:
            with self.store.transaction():
                self.events.extend(self.store.add_event(event) for event in untold)
                yield
        except BaseException:
            self._untold = untold + self._untold
            self.plan, self.jobs = plan, jobs
            for thing, fields in zip(things, before, strict=True):
                vars(thing).update(fields)
            while self.events and self.events[-1].seq > self.store.seq:
                self.events.pop()
            raise
        finally:
            self._changing_since = None
        self.shown = self._show()
        self.announce()

    def _show(self) -> Shown:
        return Shown(self.store.seq, self.plan, self.statuses(), tuple(self.events))

    def set(self, job: Job, state: JobState, reason: str = "", *, by: str = "", text: str = "", **changes: Any) -> None:
        """Give a job a state; journaled with an event unless nothing changed at all."""
        since = job.status.since if state is job.status.state else time.time()
        status = replace(job.status, state=state, reason=reason, since=since, **changes)
        if status == job.status:
            return
        if not text:
            text = f"{status.name} {state}" + (f": {reason}" if reason else "")
        # A job that waits for something else than before is a figure that changed, not something that happened.
        waits = state in (JobState.WAITING, JobState.QUEUED) and state is job.status.state and not by
        with self.transaction():
            job.status, job.told_at = status, time.monotonic()
            self.save(job)
            self.tell("reason" if waits else "state", text, job=job, by=by)

    def save(self, job: Job) -> None:
        """Journal a job without an event."""
        run = job.run
        record = JobRecord(job.status, job.wanted, job.restarts, job.due, self.boot, job.need, job.disk)
        if run is not None:
            record = replace(
                record, stop_by=run.stop_by, again=run.again, kill=run.kill, condemned=run.condemned,
                unhealthy=run.unhealthy, ready_at=run.ready_at, stop_at=run.stop_at,
            )  # fmt: skip
        self.store.set_job(job.spec.name, record)

    def save_attempt(self, run: Run, attempt: Attempt, *, ended: bool) -> None:
        self.store.set_attempt(run.job, attempt, ended=ended)

    def tell(self, kind: str, text: str, *, job: Job | None = None, by: str = "") -> None:
        """Journal a numbered event and wake who waits."""
        name, status = (job.spec.name, job.status) if job is not None else ("", None)
        with self.transaction():
            self.events.append(self.store.add_event(Event(0, time.time(), kind, text, name, by, status)))

    def note(self, kind: str, text: str) -> None:
        """Tell of what has happened in any case: as soon as the journal can be written."""
        self._untold.append(Event(0, time.time(), kind, text))
        with suppress(sqlite3.Error):
            self.catch_up()

    def catch_up(self) -> None:
        """Journal the notes that it has not taken yet."""
        if self._untold and self._changing_since is None:
            with self.transaction():
                pass

    async def surely(self, write: Callable[[], None]) -> None:
        """Write to the journal however often it takes; writes that wait for it are made in the order they came."""
        async with self._writing:
            while True:
                try:
                    with self.transaction():
                        write()
                    return
                except (sqlite3.Error, OSError) as error:
                    log.warning("the journal cannot be written, trying again: %s", error)
                await asyncio.sleep(RETRY_S)

    def take_plan(self, plan: Plan) -> None:
        """Go by a plan that is in the journal; jobs come in its order, those on their way out last."""
        self.plan = plan
        names = [spec.name for spec in plan.jobs]
        self.jobs = {name: self.jobs[name] for name in [*names, *(name for name in self.jobs if name not in names)]}

    def drop(self, job: Job) -> None:
        """Forget a job that is no longer in the plan."""
        with self.transaction():
            self.tell("plan", f"{job.spec.name} is no longer in the plan")
            self.store.remove_job(job.spec.name)
            self.jobs.pop(job.spec.name, None)

    # --- views ---

    def statuses(self) -> dict[str, JobStatus]:
        return {name: job.status for name, job in self.jobs.items()}

    def specs(self) -> dict[str, JobSpec]:
        return {name: job.spec for name, job in self.jobs.items()}

    def runs(self) -> tuple[Run, ...]:
        return tuple(job.run for job in self.jobs.values() if job.run is not None)

    def beat(self) -> Beat:
        samples = {name: self._sample(job) for name, job in list(self.jobs.items()) if job.status.attempt}
        return Beat(time.time(), self.shown.seq, self._host(), samples)

    def _host(self) -> HostSample | None:
        """The host with what goes wrong beside the jobs."""
        since, remarks = self._changing_since, list(self.remarks.values())
        waited_s = time.monotonic() - since if since is not None else 0.0
        if waited_s >= SLOW_S:
            remarks.append(f"the journal's disk has not answered for {waited_s:.0f} s: nothing new is seen of the jobs")
        elif self.looked_at and (ago := time.monotonic() - self.looked_at) > STALE_S:
            remarks.append(f"the jobs were last looked at {ago:.0f} s ago: the disk of the work directory may hang")
        return replace(self.host, remarks=(*self.host.remarks, *remarks)) if self.host and remarks else self.host

    def _sample(self, job: Job) -> JobSample:
        """What is known of a job now: figures that could not be taken for a while are left out, they may be untrue."""
        now = time.monotonic()
        sample, server = job.sample, job.server
        if now - self.looked_at > STALE_S:
            sample = JobSample(progress=sample.progress, last_line=sample.last_line, log_bytes=sample.log_bytes)
        if server is not None and now - job.server_at > STALE_S:
            server = ServerSample(f"has not answered for {now - job.server_at:.0f} s", server.ready)
        run = job.run
        up_s = now - run.began if run is not None and run.began is not None else None
        return replace(sample, server=server, up_s=up_s)

    def events_after(self, since: int, limit: int) -> list[Event]:
        """Events after number ``since``, from memory where it reaches back so far, else from the journal."""
        found = self.shown.after(since, limit)
        return list(found) if found is not None else self.store.events(since, limit)

    # --- listeners ---

    def listen(self) -> asyncio.Event:
        """An asyncio event that is set after every change; give it back to ``unlisten``."""
        event = asyncio.Event()
        self._listeners[event] = asyncio.get_running_loop()
        return event

    def unlisten(self, event: asyncio.Event) -> None:
        self._listeners.pop(event, None)

    def close_streams(self) -> None:
        """Let every listener end."""
        self.closing = True
        self.announce()

    def announce(self) -> None:
        for event, loop in list(self._listeners.items()):
            loop.call_soon_threadsafe(event.set)
