"""What the agent makes of its looks at running jobs: samples, and jobs that make no progress."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from pipeline.agent.attempts.environment import login_environment
from pipeline.agent.attempts.identity import exiting
from pipeline.agent.attempts.logs import plain
from pipeline.agent.attempts.run import Run
from pipeline.agent.board import Board, Job
from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.figures import KEPT_OF_A_JOB, NAME_LIMIT, Figures
from pipeline.agent.health import stalls
from pipeline.agent.host.gpu_faults import in_words, meaning
from pipeline.agent.host.senses import Seen, Senses, figures
from pipeline.agent.rules.shortage import DiskSpace, Memory
from pipeline.protocol import BEAT_S, DiskPolicy, JobSample, JobState

TICK_S: Final = 1.0
LOOK_S: Final = BEAT_S
HISTORY_S: Final = 5.0

MEMORY_MARK: Final = "memory short"
DISK_MARK: Final = "disk short"

log = logging.getLogger(__name__)


async def warm_up() -> None:
    """Ask the login shell for its environment before the first job needs it: it may take seconds."""
    await asyncio.to_thread(login_environment)


async def recall(board: Board, senses: Senses, run_of: Callable[[Job, int, str], Run]) -> None:
    """Read again how far the jobs got that ended before this agent was there."""
    for job in list(board.jobs.values()):
        if job.run is None and job.status.attempt:
            left = await senses.call(senses.remains, run_of(job, job.status.attempt, job.status.release))
            if job.run is None:
                job.sample = JobSample(progress=left.progress, log_bytes=left.log_bytes)


async def watch(board: Board, senses: Senses, kept: Figures, wake: Callable[[], None]) -> None:
    """Look at jobs and host every two seconds, keep figures every five, index logs every second; never returns."""
    loop = asyncio.get_running_loop()
    next_look = next_history = loop.time()
    struck: list[tuple[Run, int]] = []
    said, left_out = "", set[str]()
    memory = Memory(short=bool(board.store.mark(MEMORY_MARK, bool)))
    disk = DiskSpace(short=bool(board.store.mark(DISK_MARK, bool)))
    while True:
        try:
            runs = board.runs()
            say_killed(board, struck)
            for fault in senses.gpus.news():
                board.note("host", f"{in_words(fault)}: {meaning(fault).advice}")
            struck = await senses.call(senses.tick, runs) if runs else []
            if loop.time() >= next_look:
                next_look = loop.time() + LOOK_S - 0.05
                await look(board, senses)
                judge_disk(board, disk)
                judge_memory(board, memory)
                if any(job.status.state in (JobState.QUEUED, JobState.BACKOFF) for job in board.jobs.values()):
                    wake()
            if loop.time() >= next_history:
                next_history = loop.time() + HISTORY_S - 0.05
                live = {job.spec.name for job in board.jobs.values() if job.run is not None}
                beat = board.beat()
                samples = {name: sample for name, sample in beat.jobs.items() if name in live}
                if not board.store.trouble:  # what room there is belongs to the events
                    await senses.call(kept.add, beat.at, figures(beat.host, samples))
                    say_left_out(board, kept.refused, left_out)
            said = ""
        except Exception as error:
            # A disk that stays full makes each look fail alike: told once, not once a second.
            if repr(error) != said:
                log.exception("looking at the jobs failed; trying again")
            said = repr(error)
        await asyncio.sleep(TICK_S)


async def look(board: Board, senses: Senses, but: Run | None = None) -> None:
    """Look once at the host and at all that runs, ``but`` a run that has ended."""
    for job in board.jobs.values():
        if job.disk is not None:
            senses.disks.of(Path(job.disk.path))
    host, seen = await senses.call(senses.look, tuple(run for run in board.runs() if run is not but))
    board.host = replace(host, disk_short=board.host is not None and board.host.disk_short)
    board.spaces = senses.disks.known()
    take(board, seen)


def say_killed(board: Board, struck: list[tuple[Run, int]]) -> None:
    """Say it of jobs that live on a second after the kernel has killed some of their processes for memory."""
    for run, kills in struck:
        job = board.jobs.get(run.job)
        if job is not None and job.run is run and run.main is not None and not exiting(run.main):
            count = "one of its processes" if kills == 1 else f"{kills} of its processes"
            board.tell("host", f"{run.job}: the kernel killed {count} for memory; the job goes on", job=job)


def say_left_out(board: Board, refused: Mapping[str, str], said: set[str]) -> None:
    """Say it once of a job that gives more figures than are kept."""
    for job in refused.keys() - said:
        said.add(job)
        text = f"{job} reports figures whose history is not kept, such as {plain(refused[job])[:40]!r}"
        board.note("agent", f"{text}: {KEPT_OF_A_JOB} of a job are, with names of up to {NAME_LIMIT} characters")


def take(board: Board, seen: dict[str, Seen]) -> None:
    """Take in what one look found of the running jobs."""
    for job in board.jobs.values():
        run = job.run
        if run is None or run.job not in seen:
            continue
        found = seen[run.job]
        job.sample = found.sample
        run.peak = max(run.peak, found.sample.memory or 0)
        with suppress(sqlite3.Error):  # what cannot be journaled is found again by the next look
            judge_stall(board, job, found)
    board.looked_at = time.monotonic()
    board.announce()


def judge_memory(board: Board, memory: Memory) -> None:
    """Say it when memory runs short and when there is enough again, once each."""
    if board.host is None:
        return
    users = [(job.spec.name, job.sample.memory or 0) for job in board.jobs.values() if job.run is not None]
    was = memory.short
    _tell(board, MEMORY_MARK, memory, memory.look(board.host, users, time.monotonic()), was)


def judge_disk(board: Board, disk: DiskSpace) -> None:
    """The same of the disk."""
    if board.host is None:
        return
    was, policy = disk.short, board.plan.disk if board.plan is not None else DiskPolicy()
    text = disk.look(board.host, policy, time.monotonic())
    board.host = replace(board.host, disk_short=disk.short)
    _tell(board, DISK_MARK, disk, text, was)


def _tell(board: Board, mark: str, shortage: Memory | DiskSpace, text: str, was: bool) -> None:
    if not text:
        return
    try:
        with board.transaction():
            board.store.set_mark(mark, shortage.short)
            board.tell("host", text)
    except BaseException:
        shortage.short = was  # it was not told
        raise


def judge_stall(board: Board, job: Job, seen: Seen) -> None:
    """Say it when a job makes no progress for longer than it may, and when it goes on."""
    limit, quiet_s = job.spec.stall_s, seen.quiet_s
    if limit is None or job.spec.readiness is not None:
        return
    if job.status.state in (JobState.RUNNING, JobState.STALLED) and quiet_s > limit:
        stalls.stalled(board, job, f"no progress for {in_time(quiet_s)}")
    elif job.status.state is JobState.STALLED and seen.advanced and quiet_s <= limit:
        board.set(job, JobState.RUNNING, "makes progress again")
