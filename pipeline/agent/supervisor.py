"""Makes reality match the plan: starts what may start, follows what runs, concludes what ended.

Everything runs on one event loop. ``reconcile`` looks at every job that has no attempt and decides; a task per attempt
follows it from its journal entry to its end; ``watching`` looks at jobs and host every two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pipeline.agent import endings, paths, space, watching
from pipeline.agent.actions import stop_all
from pipeline.agent.attempts import remains
from pipeline.agent.attempts.environment import job_environment
from pipeline.agent.attempts.identity import boot_id, container_id, identify
from pipeline.agent.attempts.records import Exit, Started
from pipeline.agent.attempts.run import Ending, Run, adopt, follow, gone, prepare
from pipeline.agent.attempts.spare import Spare
from pipeline.agent.board import Board, Death, Job
from pipeline.agent.figures import Figures
from pipeline.agent.health import serving
from pipeline.agent.host import cgroups
from pipeline.agent.host.ballast import Ballast
from pipeline.agent.host.senses import Senses
from pipeline.agent.notices.heartbeat import beat
from pipeline.agent.notices.notifier import Notifier
from pipeline.agent.notices.outside import Outside
from pipeline.agent.rules import admitting, policy
from pipeline.protocol import LIVE, ActionRequest, Attempt, JobSample, JobState

RETRY_S: Final = 1.0
JUDGE_TRIES: Final = 3
LOOKING_S: Final = 15.0
"""An agent that has not looked at its jobs for so long is stuck."""
GPUS_S: Final = 0.25
"""How soon the memory of a GPU is looked at again while a job waits for it."""

QUEUE_WORDS_S: Final = 10.0
"""How often the reason of a queued job may change: the memory that is left changes all the time."""

START_STATES: Final = (JobState.WAITING, JobState.QUEUED, JobState.BACKOFF)

log = logging.getLogger(__name__)


class Supervisor:
    """All jobs of one work directory."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        journal = Path(paths.journal_path(workdir))
        self.container = container_id()
        self.ballast = Ballast(journal.parent)
        self.board = Board(space.opened(journal, self.ballast), boot_id())
        space.give_up_when_full(self.board, self.ballast)
        self.figures = Figures(journal)
        self.senses = Senses(workdir)
        self.spare = Spare(workdir)
        self.outside = Outside(workdir)
        me = identify(os.getpid())
        assert me is not None
        self.me = me
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = False
        self._closing = False
        self._again: asyncio.TimerHandle | None = None
        self._draining = False
        self._noted: set[str] = set()
        self._stuck: float | None = None  # monotonic; since when the plan cannot be followed

    # --- life ---

    async def start(self) -> None:
        """Take up every attempt whose end is not journaled, look once, and begin."""
        self._note(await self.senses.call(cgroups.prepare))
        self.board.host, _ = await self.senses.call(self.senses.look, ())
        for name, attempt in self.board.store.open_attempts():
            job = self.board.jobs.get(name)
            if job is None or job.run is not None:
                continue
            job.run = self._run_of(job, attempt.number, attempt.release)
            self.board.recall(job.run)
            if job.spec.readiness is not None:
                serving.expect(job)
            self._task(self._drive_adopted(job, job.run))
        self.spare.prepare()
        self._task(self._settle())
        self._task(watching.warm_up())
        self._task(watching.recall(self.board, self.senses, self._run_of))
        self._task(watching.watch(self.board, self.senses, self.figures, self.wake))
        self._task(Notifier(self.board, self.outside).run())
        self._task(beat(self.board, self.outside, self.looking))
        self._task(space.keep_logs(self.board, self.senses, self.workdir))
        self._task(space.keep_room(self.board, self.senses, self.ballast))
        self.wake()

    async def _settle(self) -> None:
        """Let jobs whose attempt never was wait for another."""

        def settle() -> None:
            for job in list(self.board.jobs.values()):
                if job.run is None and job.status.state in LIVE:
                    self.board.set(job, JobState.WAITING)
                if job.run is None and job.removed:
                    self.board.drop(job)

        await self.board.surely(settle)
        self.wake()

    async def close(self) -> None:
        """Let go of everything. Jobs go on."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.spare.close()
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
        """Stop every job and wait until none has processes; none starts any more."""
        stop_all(self.board, replace(request, request=f"{request.request}:jobs"))
        self._draining = True
        while self.board.runs():  # noqa: ASYNC110 - they end one by one
            await asyncio.sleep(0.02)

    def go_on(self) -> None:
        """Start jobs again: the agent stays after all."""
        self._draining = False
        self.wake()

    def looking(self) -> bool:
        """Whether jobs are looked at and the plan is followed, as they should be all the time."""
        now = time.monotonic()
        return now - self.board.looked_at < LOOKING_S and (self._stuck is None or now - self._stuck < LOOKING_S)

    # --- deciding ---

    def wake(self) -> None:
        """Reconcile soon; many calls make one."""
        if not self._woken and not self._closing:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _reconcile(self) -> None:
        self._woken = False
        if self._closing or self._draining:
            return
        try:
            self.reconcile()
            self._stuck = None
        except Exception as error:
            # Most often the journal. Whatever it is: without another try no job would start any more.
            if self._stuck is None:
                log.exception("the plan could not be followed; trying again")
            else:
                log.warning("the plan cannot be followed yet: %s", error)
            self._stuck = self._stuck or time.monotonic()
            asyncio.get_running_loop().call_later(RETRY_S, self.wake)

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
        answers = admitting.admit(self.board, ready, self.senses.gpus)
        stuck = False
        for job in ready:
            reason = answers[job.spec.name]
            if not reason:
                stuck = not self._try_to_begin(job) or stuck
            elif (
                job.status.state is not JobState.QUEUED
                or job.status.reason.endswith(admitting.UNREAD)
                or time.monotonic() - job.told_at > QUEUE_WORDS_S
            ):
                self.board.set(job, JobState.QUEUED, reason)
        for_gpus = any(job.run is None and job.held and job.spec.resources.gpus for job in ready)
        if for_gpus or stuck:
            if self._again is not None:
                self._again.cancel()
            self._again = asyncio.get_running_loop().call_later(GPUS_S if for_gpus else RETRY_S, self.wake)

    # --- attempts ---

    def _run_of(self, job: Job, number: int, release: str) -> Run:
        folder = Path(paths.attempt_dir(self.workdir, job.spec.name, number))
        return Run(job.spec.name, number, release, folder, job.spec.stop_grace_s)

    def _try_to_begin(self, job: Job) -> bool:
        """Begin an attempt; where that fails, its reason says why. sqlite3.Error where the journal is what fails."""
        try:
            self._begin(job)
        except sqlite3.Error:
            raise
        except Exception as error:
            # Whatever it is (a folder that cannot be read): the other jobs start all the same.
            reason = f"cannot start: {error}"
            if job.status.reason != reason:
                log.exception("%s cannot be started; trying again", job.spec.name)
            self.board.set(job, JobState.QUEUED, reason)
            return False
        return True

    def _begin(self, job: Job) -> None:
        """Journal an attempt, then let it be started."""
        assert self.board.plan is not None
        number = self._next_number(job)
        run = self._run_of(job, number, self.board.plan.release)
        although = f"although {job.held}, as {job.forced} asked" if job.held else ""
        with self.board.transaction():
            self.board.save_attempt(run, Attempt(number, run.release, time.time()), ended=False)
            self.board.gpus.begin(self.senses.gpus.devices(job.spec), self.senses.gpus.look())
            self.board.set(
                job, JobState.STARTING, although, attempt=number, release=run.release, pid=None, started_at=time.time(),
                ended_at=None, exit_code=None, signal=None,
            )  # fmt: skip
        job.run, job.sample, job.server = run, JobSample(), None
        job.held = job.forced = ""
        self._task(self._drive_new(job, run))

    def _next_number(self, job: Job) -> int:
        seen = paths.attempt_numbers(Path(paths.jobs_dir(self.workdir), job.spec.name))
        return max([self.board.store.last_number(job.spec.name), *seen]) + 1

    async def _drive_new(self, job: Job, run: Run) -> None:
        try:
            secrets = await asyncio.to_thread(self._prepare, job, run)
            handle = None if run.stop_by else await self.spare.start(run, secrets)
        except Exception as error:
            # Whatever it is (a missing secret, a full disk, no processes left): nothing was started.
            log.warning("attempt %d of %s cannot be started: %s", run.number, run.job, error)
            await self._conclude(job, run, Ending(void=f"cannot start: {error}"))
            return
        if handle is None:
            await self._conclude(job, run, Ending(void="stopped before it started"))
            return
        await self._drive(job, run, follow(run, handle, lambda started: self._started(job, run, started)))

    async def _drive_adopted(self, job: Job, run: Run) -> None:
        await self._drive(job, run, self._adopt(job, run))

    def _adopt(self, job: Job, run: Run) -> Coroutine[Any, Any, Ending]:
        return adopt(run, self.me, self.container, lambda started: self._started(job, run, started))

    async def _drive(self, job: Job, run: Run, following: Coroutine[Any, Any, Ending]) -> None:
        """Follow an attempt to its end; should that fail, take it up again from its files."""
        while True:
            try:
                ending = await following
                break
            except Exception:
                log.exception("lost sight of attempt %d of %s; looking again", run.number, run.job)
                await asyncio.sleep(RETRY_S)
                following = self._adopt(job, run)
        if ending.abandoned:
            await self._conclude_void(job, run, ending.void)
        else:
            await self._conclude(job, run, ending)

    def _prepare(self, job: Job, run: Run) -> dict[str, str]:
        release = Path(paths.release_dir(self.workdir, run.release))
        run.folder.mkdir(parents=True, exist_ok=True)
        environment = job_environment(job.spec, release_dir=release, attempt_dir=run.folder)
        return prepare(run, job.spec, environment, self.workdir, release)

    def _note(self, text: str) -> None:
        """Log once in this agent's life what the kernel does not allow here."""
        if text and text not in self._noted:
            self._noted.add(text)
            log.warning("refused here: %s", text)

    def _started(self, job: Job, run: Run, started: Started) -> None:
        """The job's process is known."""
        for text in started.refused:
            self._note(text)
        if run.stop_by or run.sentence:
            if job.status.pid != started.pid:
                self.board.set(job, job.status.state, job.status.reason, pid=started.pid)
            run.end(kill=run.kill)
            return
        if job.status.pid == started.pid and job.status.state is not JobState.STARTING:
            pass  # adopted as it was
        elif job.spec.service and job.spec.readiness is None:
            self.board.set(job, JobState.READY, pid=started.pid, started_at=started.at)
            self.wake()
        else:
            self.board.set(job, JobState.RUNNING, pid=started.pid, started_at=started.at)
        if run.watched:
            return
        run.watched = True
        if job.spec.service or job.spec.readiness is not None:
            self._task(serving.attend(self.board, job, run, self.wake))
        self._task(self._main_watch(job, run))

    async def _main_watch(self, job: Job, run: Run) -> None:
        """Say it when the main process has ended but its attempt has not: others are left, or the disk hangs."""
        assert run.main is not None
        await gone(run.main)
        await asyncio.sleep(0.25)
        if job.run is not run or job.status.state is JobState.STOPPING:
            return
        left = await asyncio.to_thread(remains.find, run) - {run.shim}
        unrecorded = "it has ended; how is told once its disk takes the exit record"
        words = "its main process has ended; what it left behind is being ended" if left else unrecorded

        def say() -> None:
            if job.run is run and job.status.state is not JobState.STOPPING:
                self.board.set(job, JobState.STOPPING, words)

        await self.board.surely(say)

    # --- ends ---

    async def _conclude(self, job: Job, run: Run, ending: Ending) -> None:
        """Judge an attempt that has ended, journal it, and decide what comes next."""
        record = endings.record_of(ending)
        if ending.container:  # this agent saw nothing of it: the last that another one kept
            memory = await self._last_memory(run)
            job.sample = replace(job.sample, memory=None if memory is None else int(memory))
        if endings.killed(run, record):
            self.board.deaths.append(Death(run.job, run.number, record.main_exited[1], run.oom_counter))
        found = await self._judge(job, run, ending, record)
        left, state, reason, diagnosis = found.left, found.state, found.reason, found.diagnosis
        self.board.spaces = self.senses.disks.known()
        ended_at = record.tree_empty[0]
        attempt = Attempt(
            run.number, run.release, job.status.started_at, ended_at, record.exit_code, record.signal,
            str(state), reason, run.peak or None, left.log_bytes,
        )  # fmt: skip

        def journal() -> None:
            self.board.save_attempt(run, attempt, ended=True)
            if record.left_over:
                self.board.tell("left", endings.left_over(run, record))
            endings.doubt(self.board, found.beside, (run.job, run.number))
            lesson = admitting.learn(self.board, job, run, diagnosis)
            self.board.set(
                job, state, reason, pid=None, ended_at=ended_at, exit_code=record.exit_code,
                signal=record.signal, diagnosis=diagnosis, result=left.result,
            )  # fmt: skip
            delay = endings.follow_up(self.board, job, run, record, lesson, found.filled)
            if delay:
                asyncio.get_running_loop().call_later(delay + 0.01, self.wake)

        self.board.gpus.end(self.senses.gpus.devices(job.spec), time.monotonic())
        await self._close_run(job, journal)
        if job.run is None:
            job.server = None
            job.sample = JobSample(
                progress=left.progress, last_line=job.sample.last_line, log_bytes=left.log_bytes
            )  # fmt: skip

    async def _last_memory(self, run: Run) -> float | None:
        try:
            return await self.senses.call(self.figures.last, run.job, "memory")
        except sqlite3.Error:  # worth less than an end that is told
            log.exception("the last memory of %s cannot be read", run.job)
            return None

    async def _judge(self, job: Job, run: Run, ending: Ending, record: Exit) -> endings.Judgement:
        """The verdict on an attempt; one that cannot be found after some tries says so, and holds up nothing."""
        for left in reversed(range(JUDGE_TRIES)):
            try:
                found = await self.senses.call(
                    endings.judge, self.senses, job, run, ending, record, tuple(self.board.deaths), self.board.runs()
                )
                if admitting.hungry(found.diagnosis):
                    await watching.look(self.board, self.senses, but=run)
                return found
            except Exception as error:
                log.exception("attempt %d of %s cannot be judged", run.number, run.job)
                if not left:
                    return endings.unjudged(record, error)
            await asyncio.sleep(RETRY_S)
        raise AssertionError("unreachable")

    async def _close_run(self, job: Job, journal: Callable[[], None]) -> None:
        """Journal the end of an attempt, however often it takes: until then the job cannot start again."""

        def close() -> None:
            journal()
            job.run = None
            self.board.save(job)

        await self.board.surely(close)
        if job.removed:
            await self.board.surely(lambda: self.board.drop(job))
        self.wake()

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
