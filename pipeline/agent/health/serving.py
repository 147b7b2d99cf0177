"""Follows a model server through one attempt: ready once it has proved itself, stalled once it lives no more."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pipeline.agent.attempts.run import Run
from pipeline.agent.board import Board, Job
from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.health.stalls import condemn, stalled
from pipeline.protocol import JobState, Readiness, ServerSample

log = logging.getLogger(__name__)


UNSEEN: Final = "waiting for the first look"
IDLE_S: Final = 2.0
"""How soon it is seen that a plan asks for readiness again."""


def expect(job: Job) -> None:
    """Say of a server that this agent has not looked at it yet."""
    job.server, job.server_at = ServerSample(UNSEEN, ready=job.status.state is JobState.READY), time.monotonic()


async def attend(board: Board, job: Job, run: Run, wake: Callable[[], None]) -> None:
    """Look at a server until its attempt ends; while the plan does not ask for its readiness, it is ready as it is."""
    while _followed(job, run):
        if job.spec.readiness is not None:
            await _look_after(board, job, run, wake)
            continue
        if job.status.state in (JobState.RUNNING, JobState.STALLED):
            with suppress(sqlite3.Error):  # tried again after the pause
                board.set(job, JobState.READY, "its readiness is not asked for")
                wake()
        job.server = None
        await asyncio.sleep(IDLE_S)


async def _look_after(board: Board, job: Job, run: Run, wake: Callable[[], None]) -> None:
    """Look at a server again and again while its attempt lasts and the plan asks for its readiness.

    Its times are read anew at every look: a plan may change them.
    """
    # Brings httpx, which an agent without servers can do without.
    from pipeline.agent.health.server_probe import Found, ServerProbe

    if job.server is None:
        expect(job)
    if run.ready_at is None and job.status.state is JobState.READY:  # it was not asked to prove itself
        with suppress(sqlite3.Error):
            board.set(job, JobState.RUNNING, UNSEEN)
    probe = ServerProbe(run.log, run.ready_at)
    began, misses = time.monotonic(), 0
    try:
        while (readiness := job.spec.readiness) is not None:
            try:
                found = await probe.look(readiness, job.spec.liveness)
            except Exception:
                log.exception("looking at %s failed; looking again", job.spec.name)
                found = Found(ServerSample(step="cannot be looked at; see agent.log"))
            if not _followed(job, run) or job.spec.readiness is None:
                return
            job.server, job.server_at = found.sample, time.monotonic()
            misses = 0 if found.sample.ready else misses + 1
            was_ready = job.status.state is JobState.READY
            with suppress(sqlite3.Error):  # what cannot be journaled is found again by the next look
                if found.wrong:
                    condemn(board, job, found.wrong)
                    return
                if found.dead:
                    stalled(board, job, found.dead)
                run.ready_at = probe.ready_at
                judge(board, job, found.sample, readiness, time.monotonic() - began, misses)
            if was_ready is not (job.status.state is JobState.READY):
                wake()
            await asyncio.sleep(readiness.checks.interval_s)
    finally:
        await probe.close()


def _followed(job: Job, run: Run) -> bool:
    """Whether the attempt goes on, and nobody has asked it to end."""
    return job.run is run and not run.stop_by and not run.sentence


def judge(board: Board, job: Job, sample: ServerSample, readiness: Readiness, waited_s: float, misses: int) -> None:
    """The state of a server after a look at it; ``misses``: looks in a row at which it was not ready."""
    state, checks = job.status.state, readiness.checks
    if state is JobState.STOPPING:
        return
    if sample.ready:
        if state is not JobState.READY:
            board.set(job, JobState.READY)
    elif state is JobState.READY:
        if misses >= checks.threshold:
            board.set(job, JobState.STALLED, f"was ready, now: {sample.step}")
    elif job.run is not None and job.run.ready_at is None and waited_s > checks.start_s:
        stalled(board, job, f"not ready after {in_time(waited_s)}: {sample.step}")
    elif state is JobState.RUNNING:
        board.set(job, JobState.RUNNING, sample.step)
