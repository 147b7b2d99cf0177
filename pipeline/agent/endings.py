"""What the end of an attempt means: its verdict, and whether the job starts again."""

from __future__ import annotations

import random
import time

from pipeline.agent import policy
from pipeline.agent.board import Board, Job
from pipeline.agent.diagnosis import Evidence, diagnose
from pipeline.agent.records import Exit
from pipeline.agent.run import Ending, Run
from pipeline.agent.senses import Remains
from pipeline.protocol import Diagnosis, JobState


def unstarted(error: str) -> Exit:
    """The exit record of an attempt whose job never ran."""
    return Exit(None, None, _now(), _now(), error=error)


def record_of(ending: Ending) -> Exit:
    """The exit record of an ending; one that knows nothing where the end was not seen."""
    return ending.exit or (unstarted(ending.void) if ending.void else Exit(None, None, _now(), _now()))


def _now() -> tuple[float, float]:
    return time.time(), time.monotonic()


def verdict(job: Job, run: Run, ending: Ending, record: Exit, left: Remains) -> tuple[JobState, str, Diagnosis | None]:
    """The final state, its reason in words, and the diagnosis."""
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


def follow_up(board: Board, job: Job, run: Run, record: Exit) -> float | None:
    """Give an ended job the state it goes on in; seconds until it starts again, None where it does not by itself."""
    if run.again and not job.removed:
        board.set(job, JobState.WAITING, "")
        return 0.0
    if run.stop_by or run.condemned or job.wanted != "run" or job.removed:
        return None
    now = time.monotonic()
    ran_s = max(0.0, (job.status.ended_at or 0) - (job.status.started_at or 0))
    chance = random.random()  # noqa: S311 - spreads restarts, guards nothing
    found = policy.after_end(
        job.spec.restart, job.status.state, record.exit_code, job.restarts, ran_s, now, chance
    )  # fmt: skip
    if isinstance(found, policy.Stay):
        if found.gave_up:
            board.set(job, JobState.FAILED, f"{found.gave_up}; last: {job.status.reason}")
        return None
    job.restarts, job.due = found.restarts, now + found.delay_s
    when = f"in {found.delay_s:.0f} s" if found.delay_s >= 1 else "now"
    count = f"{len(job.restarts)} of {job.spec.restart.limit}"
    words = f"{job.status.reason or job.status.state}; starts again {when} ({count})"
    board.set(job, JobState.BACKOFF, words, restarts=job.status.restarts + 1)
    return found.delay_s
