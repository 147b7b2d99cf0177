"""What admission is told: who wants to start, who holds what, and what each job was measured to need."""

from __future__ import annotations

from typing import Final

from pipeline.agent import admission
from pipeline.agent.board import Board, Job
from pipeline.agent.run import Run
from pipeline.protocol import Diagnosis

OOM_MARGIN: Final = 1.5
"""What a job that was killed for memory is granted the next time, as a share of what it had at most."""


def admit(board: Board, ready: list[Job]) -> dict[str, str]:
    """By job: "" where it may start now, else why not, in words."""
    if board.host is None:
        return {job.spec.name: "the host has not been looked at yet" for job in ready}
    demands = [admission.Demand(job.spec.name, memory_of(job), job.spec.resources.gpus) for job in ready]
    holdings = [
        admission.Holding(job.spec.name, memory_of(job), job.sample.memory or 0, job.spec.resources.gpus)
        for job in board.jobs.values()
        if job.run is not None
    ]
    reserve = board.plan.reserve_memory if board.plan is not None else 0
    return admission.decide(demands, holdings, board.host, reserve)


def memory_of(job: Job) -> int | None:
    """Bytes to set aside: the planned figure, more where a kill for memory taught so, else the peak measured before."""
    planned = job.spec.resources.memory
    if planned is None:
        return job.need
    return planned if job.need is None else max(planned, job.need)


def learn(job: Job, run: Run, diagnosis: Diagnosis | None) -> None:
    """Note what the end of an attempt teaches: its peak where the plan says nothing, more than it had after a kill."""
    planned = job.spec.resources.memory
    if diagnosis is not None and diagnosis.cause in ("oom", "probable-oom"):
        job.need = int(OOM_MARGIN * max(run.peak, planned or 0, job.need or 0)) or None
    elif planned is None and run.peak:
        job.need = max(job.need or 0, run.peak)
