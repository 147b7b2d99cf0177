"""What follows when a job is alive but does not do its work: it is told, and ended where its policy says so."""

from __future__ import annotations

from pipeline.agent.board import Board, Job
from pipeline.protocol import JobState


def stalled(board: Board, job: Job, why: str) -> None:
    """Say that a job does not do its work. Policy ``restart`` ends it, and it starts again as after a crash."""
    run = job.run
    if run is None or run.stop_by or run.sentence:
        return
    if job.spec.on_stall == "restart":
        with board.transaction():
            run.unhealthy = why
            board.set(job, JobState.STOPPING, f"{why}; is ended and starts again")
        run.end()
    elif job.status.state is not JobState.STALLED:
        board.set(job, JobState.STALLED, why)


def condemn(board: Board, job: Job, why: str) -> None:
    """End a job for good: no other attempt would be better."""
    run = job.run
    if run is None:
        return
    with board.transaction():
        run.condemned = why
        board.set(job, JobState.STOPPING, why)
    run.end()
