"""Makes reality match the plan: starts what may start, follows what runs, concludes what ended.

Everything runs on one event loop. ``reconcile`` looks at every job that has no attempt and decides; a task per attempt
follows it from its journal entry to its end; ``watching`` looks at jobs and host every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pipeline.agent import admission, paths, policy
from pipeline.agent.actions import act
from pipeline.agent.board import Board, Job
from pipeline.agent.diagnosis import Evidence, diagnose
from pipeline.agent.environment import MissingSecret, job_environment
from pipeline.agent.identity import boot_id, container_id, identify
from pipeline.agent.records import Exit, Started
from pipeline.agent.run import Ending, Run, adopt, follow, gone, prepare, spawn
from pipeline.agent.senses import Remains, Senses, figures
from pipeline.agent.store import Figures, Store
from pipeline.protocol import BEAT_S, LIVE, ActionRequest, Attempt, Diagnosis, JobSample, JobState

TICK_S: Final = 1.0
LOOK_S: Final = BEAT_S
HISTORY_S: Final = 5.0
PROBE_S: Final = 2.0
NOT_READY_LOOKS: Final = 3
"""A service that was ready has to fail so many looks in a row before it is not."""

QUEUE_WORDS_S: Final = 10.0
"""How often the reason of a queued job may change: the memory that is left changes all the time."""

OOM_MARGIN: Final = 1.5
"""What a job that was killed for memory is granted the next time, as a share of what it had at most."""

START_STATES: Final = (JobState.WAITING, JobState.QUEUED, JobState.BACKOFF)

log = logging.getLogger(__name__)


class Supervisor:
    """All jobs of one work directory."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        journal = Path(paths.journal_path(workdir))
        self.container = container_id()
        self.board = Board(Store(journal), boot_id())
        self.figures = Figures(journal)
        self.senses = Senses(workdir)
        me = identify(os.getpid())
        assert me is not None
        self.me = me
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = False
        self._closing = False

    # --- life ---

    async def start(self) -> None:
        """Take up every attempt whose end is not journaled, look once, and begin."""
        self.board.host, _ = await self.senses.call(self.senses.look, ())
        for name, attempt in self.board.store.open_attempts():
            job = self.board.jobs.get(name)
            if job is None or job.run is not None:
                continue
            job.run = self._run_of(job, attempt.number, attempt.release)
            self.board.recall(job.run)
            self._task(self._drive_adopted(job, job.run))
        for job in list(self.board.jobs.values()):
            if job.run is None and job.status.state in LIVE:
                self.board.set(job, JobState.WAITING)
            if job.run is None and job.removed:
                self.board.drop(job)
            elif job.run is None and job.status.attempt:
                run = self._run_of(job, job.status.attempt, job.status.release)
                left = await self.senses.call(self.senses.remains, run)
                job.sample = JobSample(progress=left.progress, log_bytes=left.log_bytes)
        self._task(self._watching())
        self.wake()

    async def close(self) -> None:
        """Let go of everything. Jobs go on."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.senses.close()
        self.figures.close()
        self.board.store.close()

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the agent failed", exc_info=task.exception())

    async def stop_all(self, request: ActionRequest) -> None:
        """Stop every job and wait until none has processes."""
        for job in list(self.board.jobs.values()):
            part = replace(request, request=f"{request.request}:{job.spec.name}")
            act(self.board, job, "stop", part)
        while self.board.runs():  # noqa: ASYNC110 - they end one by one
            await asyncio.sleep(0.02)

    # --- deciding ---

    def wake(self) -> None:
        """Reconcile soon; many calls make one."""
        if not self._woken and not self._closing:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._woken = False
        if self._closing:
            return
        try:
            self.reconcile()
        except (sqlite3.Error, OSError):
            log.exception("the plan could not be followed; trying again")
            asyncio.get_running_loop().call_later(TICK_S, self.wake)

    def reconcile(self) -> None:
        """Start every job that may start; say of the others why not."""
        statuses, specs = self.board.statuses(), self.board.specs()
        ready: list[Job] = []
        for name, job in list(self.board.jobs.items()):
            if job.run is not None or job.removed or job.wanted != "run" or job.status.state not in START_STATES:
                continue
            if job.status.state is JobState.BACKOFF and time.monotonic() < job.due:
                continue
            blocked = policy.unmet(job.spec, statuses, specs)
            if blocked:
                self.board.set(job, JobState.WAITING, blocked)
                statuses[name] = job.status
            else:
                ready.append(job)
        if not ready:
            return
        answers = self._admit(ready)
        for job in ready:
            reason = answers[job.spec.name]
            if not reason:
                self._begin(job)
            elif job.status.state is not JobState.QUEUED or time.monotonic() - job.told_at > QUEUE_WORDS_S:
                self.board.set(job, JobState.QUEUED, reason)

    def _admit(self, ready: list[Job]) -> dict[str, str]:
        if self.board.host is None:
            return {job.spec.name: "the host has not been looked at yet" for job in ready}
        demands = [admission.Demand(job.spec.name, self._need(job), job.spec.resources.gpus) for job in ready]
        holdings = [
            admission.Holding(job.spec.name, self._need(job), job.sample.memory or 0, job.spec.resources.gpus)
            for job in self.board.jobs.values()
            if job.run is not None
        ]
        reserve = self.board.plan.reserve_memory if self.board.plan is not None else 0
        return admission.decide(demands, holdings, self.board.host, reserve)

    def _need(self, job: Job) -> int | None:
        planned = job.spec.resources.memory
        if planned is None:
            return job.need
        return planned if job.need is None else max(planned, job.need)

    # --- attempts ---

    def _run_of(self, job: Job, number: int, release: str) -> Run:
        folder = Path(paths.attempt_dir(self.workdir, job.spec.name, number))
        return Run(job.spec.name, number, release, folder, job.spec.stop_grace_s)

    def _begin(self, job: Job) -> None:
        """Journal an attempt, then let it be started."""
        assert self.board.plan is not None
        number = self._next_number(job)
        run = self._run_of(job, number, self.board.plan.release)
        with self.board.transaction():
            self.board.save_attempt(run, Attempt(number, run.release, time.time()), ended=False)
            self.board.set(
                job, JobState.STARTING, "", attempt=number, release=run.release, pid=None, started_at=time.time(),
                ended_at=None, exit_code=None, signal=None,
            )  # fmt: skip
        job.run, job.sample, job.server = run, JobSample(), None
        self._task(self._drive_new(job, run))

    def _next_number(self, job: Job) -> int:
        folder = Path(paths.attempt_dir(self.workdir, job.spec.name, 0)).parent
        seen = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []
        journaled = [attempt.number for attempt in self.board.store.attempts(job.spec.name)]
        return max([0, *seen, *journaled]) + 1

    async def _drive_new(self, job: Job, run: Run) -> None:
        try:
            secrets = await asyncio.to_thread(self._prepare, job, run)
            if run.stop_by or run.condemned:
                ending = Ending(void="stopped before it started")
            else:
                handle = spawn(run, secrets)
                ending = await follow(run, handle, lambda started: self._started(job, run, started))
        except MissingSecret as error:
            ending = Ending(exit=_unstarted(str(error)))
        except OSError as error:
            ending = Ending(exit=_unstarted(f"cannot start: {error}"))
        await self._conclude(job, run, ending)

    def _prepare(self, job: Job, run: Run) -> dict[str, str]:
        release = Path(paths.release_dir(self.workdir, run.release))
        run.folder.mkdir(parents=True, exist_ok=True)
        environment = job_environment(job.spec, release_dir=release, attempt_dir=run.folder)
        return prepare(run, job.spec, environment, self.workdir, release)

    async def _drive_adopted(self, job: Job, run: Run) -> None:
        ending = await adopt(run, self.me, self.container, lambda started: self._started(job, run, started))
        if ending.void:
            await self._conclude_void(job, run, ending.void)
        else:
            await self._conclude(job, run, ending)

    def _started(self, job: Job, run: Run, started: Started) -> None:
        """The job's process is known."""
        if run.stop_by or run.condemned:
            if job.status.pid != started.pid:
                self.board.set(job, job.status.state, job.status.reason, pid=started.pid)
            run.end(kill=run.kill)
            return
        if job.status.pid == started.pid and job.status.state in (JobState.RUNNING, JobState.READY, JobState.STALLED):
            pass  # adopted as it was
        elif job.spec.service and job.spec.readiness is None:
            self.board.set(job, JobState.READY, pid=started.pid, started_at=started.at)
            self.wake()
        else:
            self.board.set(job, JobState.RUNNING, pid=started.pid, started_at=started.at)
        if job.spec.readiness is not None:
            self._task(self._probing(job, run))
        self._task(self._main_watch(job, run))

    async def _main_watch(self, job: Job, run: Run) -> None:
        """Say it when the main process has ended but the rest of its tree has not."""
        assert run.main is not None
        await gone(run.main)
        await asyncio.sleep(0.25)
        if job.run is run and job.status.state is not JobState.STOPPING:
            self.board.set(job, JobState.STOPPING, "its main process has ended; what it left behind is being ended")

    # --- ends ---

    async def _conclude(self, job: Job, run: Run, ending: Ending) -> None:
        record = ending.exit or (_unstarted(ending.void) if ending.void else Exit(None, None, _now(), _now()))
        left = await self.senses.call(self.senses.remains, run)
        state, reason, diagnosis = self._verdict(job, run, ending, record, left)
        ended_at = record.tree_empty[0]
        attempt = Attempt(
            run.number, run.release, job.status.started_at, ended_at, record.exit_code, record.signal,
            str(state), reason, run.peak or None, left.log_bytes,
        )  # fmt: skip

        def journal() -> None:
            self.board.save_attempt(run, attempt, ended=True)
            self._learn_need(job, run, diagnosis)
            self.board.set(
                job, state, reason, pid=None, ended_at=ended_at, exit_code=record.exit_code,
                signal=record.signal, diagnosis=diagnosis, result=left.result,
            )  # fmt: skip
            self._follow_up(job, run, record)

        await self._close_run(job, journal)
        job.sample = JobSample(progress=left.progress, last_line=job.sample.last_line, log_bytes=left.log_bytes)

    async def _close_run(self, job: Job, journal: Callable[[], None]) -> None:
        """Journal the end of an attempt, however often it takes: until then the job cannot start again."""
        run = job.run
        while True:
            try:
                with self.board.transaction():
                    journal()
                    job.run = None
                    self.board.save(job)
                break
            except (sqlite3.Error, OSError):
                job.run = run
                log.exception("the end of %s could not be journaled; trying again", job.spec.name)
                await asyncio.sleep(TICK_S)
        if job.removed:
            self.board.drop(job)
        self.wake()

    def _verdict(
        self, job: Job, run: Run, ending: Ending, record: Exit, left: Remains
    ) -> tuple[JobState, str, Diagnosis | None]:
        if run.condemned:
            return JobState.FAILED, run.condemned, Diagnosis("wrong-server", run.condemned)
        evidence = Evidence(
            spec=job.spec,
            exit_code=record.exit_code,
            signal=record.signal,
            log_tail=left.log_tail,
            result=left.result,
            progress=left.progress,
            oom_before=record.oom_before,
            oom_after=record.oom_after,
            stopped_by=run.stop_by,
            shim_lost=ending.shim_lost,
            container_restarted=bool(ending.container),
            last_sample=job.sample,
            error=record.error,
        )
        state, reason, diagnosis = diagnose(evidence)
        return state, ending.container or reason, diagnosis

    def _learn_need(self, job: Job, run: Run, diagnosis: Diagnosis | None) -> None:
        """What admission sets aside the next time: the peak measured, and more after a kill for memory."""
        if diagnosis is not None and diagnosis.cause.startswith("oom"):
            job.need = int(OOM_MARGIN * max(run.peak, self._need(job) or 0)) or None
        elif run.peak:
            job.need = max(job.need or 0, run.peak)

    def _follow_up(self, job: Job, run: Run, record: Exit) -> None:
        """Decide what comes after an end: nothing, at once again, or again after a while."""
        if run.again:
            self.board.set(job, JobState.WAITING, "")
            return
        if run.stop_by or run.condemned or job.wanted != "run" or job.removed:
            return
        now = time.monotonic()
        ran_s = max(0.0, (job.status.ended_at or 0) - (job.status.started_at or 0))
        verdict = policy.after_end(
            job.spec.restart,
            job.status.state,
            record.exit_code,
            job.restarts,
            ran_s,
            now,
            random.random(),  # noqa: S311
        )
        if isinstance(verdict, policy.Stay):
            if verdict.gave_up:
                self.board.set(job, JobState.FAILED, f"{verdict.gave_up}; last: {job.status.reason}")
            return
        job.restarts, job.due = verdict.restarts, now + verdict.delay_s
        when = f"in {verdict.delay_s:.0f} s" if verdict.delay_s >= 1 else "now"
        count = f"{len(job.restarts)} of {job.spec.restart.limit}"
        words = f"{job.status.reason or job.status.state}; starts again {when} ({count})"
        self.board.set(job, JobState.BACKOFF, words, restarts=job.status.restarts + 1)
        if verdict.delay_s:
            asyncio.get_running_loop().call_later(verdict.delay_s + 0.01, self.wake)

    async def _conclude_void(self, job: Job, run: Run, why: str) -> None:
        """An attempt that the death of an agent cut off before its job started: it never was, and does not count."""
        attempt = Attempt(run.number, run.release, None, time.time(), state="abandoned", reason=why)

        def journal() -> None:
            self.board.save_attempt(run, attempt, ended=True)
            if run.stop_by and not run.again:
                self.board.set(job, JobState.STOPPED, f"stopped by {run.stop_by}", pid=None)
            else:
                self.board.set(job, JobState.WAITING, "", pid=None)

        await self._close_run(job, journal)

    # --- watching ---

    async def _watching(self) -> None:
        loop = asyncio.get_running_loop()
        next_look = next_history = loop.time()
        while True:
            try:
                runs = self.board.runs()
                if runs:
                    await self.senses.call(self.senses.index_logs, runs)
                if loop.time() >= next_look:
                    next_look = loop.time() + LOOK_S - 0.05
                    await self._look(runs)
                if loop.time() >= next_history:
                    next_history = loop.time() + HISTORY_S - 0.05
                    beat = self.board.beat()
                    await self.senses.call(self.figures.add, beat.at, figures(beat.host, beat.jobs))
            except (sqlite3.Error, OSError):
                log.exception("looking at the jobs failed; trying again")
            await asyncio.sleep(TICK_S)

    async def _look(self, runs: tuple[Run, ...]) -> None:
        self.board.host, seen = await self.senses.call(self.senses.look, runs)
        for job in self.board.jobs.values():
            run = job.run
            if run is None or run.job not in seen:
                continue
            found = seen[run.job]
            job.sample = found.sample
            run.peak = max(run.peak, found.sample.memory or 0)
            self._judge_stall(job, found.quiet_s)
        self.board.announce()
        if any(job.status.state in (JobState.QUEUED, JobState.BACKOFF) for job in self.board.jobs.values()):
            self.wake()

    def _judge_stall(self, job: Job, quiet_s: float) -> None:
        limit = job.spec.stall_s
        if limit is None:
            return
        if job.status.state is JobState.RUNNING and quiet_s > limit:
            self.board.set(job, JobState.STALLED, f"no progress for {quiet_s / 60:.0f} min" if quiet_s >= 120 else
                           f"no progress for {quiet_s:.0f} s")  # fmt: skip
        elif job.status.state is JobState.STALLED and quiet_s <= limit and job.server is None:
            self.board.set(job, JobState.RUNNING, "makes progress again")

    async def _probing(self, job: Job, run: Run) -> None:
        """Walk the readiness ladder of a server until its attempt ends."""
        from pipeline.agent.server_probe import (
            ServerProbe,
        )  # brings httpx, which an agent without servers can do without

        readiness = job.spec.readiness
        assert readiness is not None
        probe = ServerProbe(readiness)
        began, misses = asyncio.get_running_loop().time(), 0
        try:
            while job.run is run and not run.stop_by and not run.condemned:
                sample, wrong = await probe.look()
                if job.run is not run or run.stop_by:
                    return
                job.server = sample
                if wrong:
                    run.condemned = wrong
                    self.board.set(job, JobState.STOPPING, wrong)
                    run.end()
                    return
                misses = 0 if sample.ready else misses + 1
                state = job.status.state
                if sample.ready and state is not JobState.READY:
                    self.board.set(job, JobState.READY)
                    self.wake()
                elif not sample.ready and (state is not JobState.READY or misses >= NOT_READY_LOOKS):
                    waited = asyncio.get_running_loop().time() - began
                    late = state is not JobState.READY and waited > readiness.load_timeout_s
                    words = f"not ready after {waited:.0f} s: {sample.step}" if late else sample.step
                    if state is not JobState.STALLED or not late:
                        self.board.set(job, JobState.STALLED if late else JobState.RUNNING, words)
                await asyncio.sleep(PROBE_S)
        finally:
            await probe.close()


def _now() -> tuple[float, float]:
    return time.time(), time.monotonic()


def _unstarted(error: str) -> Exit:
    return Exit(None, None, _now(), _now(), error=error)
