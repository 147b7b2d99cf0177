"""Follows a model server through one attempt: ready once it has proved itself, stalled once it lives no more."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress

from pipeline.agent.attempts.run import Run
from pipeline.agent.board import Board, Job
from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.health.stalls import condemn, stalled
from pipeline.protocol import JobState, Readiness, ServerSample

log = logging.getLogger(__name__)


async def attend(board: Board, job: Job, run: Run, wake: Callable[[], None]) -> None:
    """Look at a server until its attempt ends. Its times are read anew at every look: a plan may change them."""
    # Brings httpx, which an agent without servers can do without.
    from pipeline.agent.health.server_probe import Found, ServerProbe

    probe = ServerProbe(run.log, run.ready_at)
    began, misses = time.monotonic(), 0
    try:
        while True:
            readiness = job.spec.readiness
            if readiness is None:  # a plan without it
                return
            try:
                found = await probe.look(readiness, job.spec.liveness)
            except Exception:
                log.exception("looking at %s failed; looking again", job.spec.name)
                found = Found(ServerSample(step="cannot be looked at; see agent.log"))
            if job.run is not run or run.stop_by or run.sentence:
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
