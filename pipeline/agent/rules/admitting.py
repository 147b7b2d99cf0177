"""What admission is told: who wants to start, who holds what, and what each job was measured to need."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from pipeline.agent.attempts.run import Run
from pipeline.agent.board import Board, Job
from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.host.gpus import GpuWatch
from pipeline.agent.rules import admission
from pipeline.agent.rules.full_disks import for_room
from pipeline.agent.rules.gpu_wait import LONG_S
from pipeline.protocol import Diagnosis

OOM_MARGIN: Final = 1.5
"""What a job that was killed for memory is granted the next time, as a share of what it had at most."""


OOM_CAUSES: Final = frozenset({"oom", "probable-oom"})
ALL: Final = 0.97
"""Of what this host has without any job, so much is the most a job can be granted: the rest moves."""


UNREAD: Final = ("yet", "being read")
"""How reasons end that hold only until the next look."""


@dataclass(frozen=True)
class Lesson:
    """What a kill for memory taught: bytes the job had at most, bytes it is granted next; None: there are no more."""

    had: int
    need: int | None


def admit(board: Board, ready: list[Job], gpus: GpuWatch) -> dict[str, str]:
    """By job: "" where it may start now, else why not, in words."""
    if board.host is None:
        return {job.spec.name: "the host has not been looked at yet" for job in ready}
    waits = {job.spec.name: _disk_full(board, job) or _gpus_held(board, job, gpus) for job in ready}
    demands = [
        admission.Demand(job.spec.name, memory_of(job), job.spec.resources.gpus)
        for job in ready
        if not waits[job.spec.name]
    ]
    return {**waits, **admission.decide(demands, _holdings(board), board.host, _reserve(board))}


def _disk_full(board: Board, job: Job) -> str:
    """Why a job that ended on a full disk waits, "" where it does not, or is to start all the same."""
    if job.disk is None or job.forced:
        return ""
    job.held = for_room(job.disk, board.spaces.get(job.disk.path))
    return job.held


def _gpus_held(board: Board, job: Job, gpus: GpuWatch) -> str:
    """Why a job waits for the memory of its devices, "" where it does not, or is to start all the same."""
    if job.spec.resources.gpus and not gpus.looked:
        return "the GPUs have not been looked at yet"
    running = {index for other in board.jobs.values() if other.run is not None for index in gpus.devices(other.spec)}
    now = time.monotonic()
    held = board.gpus.held([index for index in gpus.devices(job.spec) if index not in running], gpus.look())
    if held and not job.held:
        job.held_since = now
    job.held = held
    if not held or job.forced:
        return ""
    waited = now - job.held_since
    return f"{held} after {in_time(waited)}; start it again to go ahead all the same" if waited > LONG_S else held


def memory_of(job: Job) -> int | None:
    """Bytes to set aside: the planned figure, more where a kill for memory taught so, else the peak measured before."""
    planned = job.spec.resources.memory
    if planned is None:
        return job.need
    return planned if job.need is None else max(planned, job.need)


def hungry(diagnosis: Diagnosis | None) -> bool:
    """Whether the kernel killed it for memory, as far as is known."""
    return diagnosis is not None and diagnosis.cause in OOM_CAUSES


def learn(board: Board, job: Job, run: Run, diagnosis: Diagnosis | None) -> Lesson | None:
    """Note what the end of an attempt teaches: its peak where the plan says nothing, more than it had after a kill.

    After a kill the host must have been looked at anew: what the job can be granted is reckoned from that.
    """
    planned = job.spec.resources.memory
    if not hungry(diagnosis):
        if planned is None and run.peak:
            job.need = max(job.need or 0, run.peak)
        return None
    had = max(run.peak, planned or 0, job.need or 0)
    if not had or board.host is None:
        return None
    others = [holding for holding in _holdings(board) if holding.name != job.spec.name]
    free = admission.memory_left((), board.host, _reserve(board)) + sum(holding.present for holding in others)
    most = int(ALL * free)
    if had >= most:
        return Lesson(had, None)
    job.need = min(int(OOM_MARGIN * had), most)
    return Lesson(had, job.need)


def _holdings(board: Board) -> list[admission.Holding]:
    return [
        admission.Holding(job.spec.name, memory_of(job), job.sample.memory or 0, job.spec.resources.gpus)
        for job in board.jobs.values()
        if job.run is not None
    ]


def _reserve(board: Board) -> int:
    return board.plan.reserve_memory if board.plan is not None else 0
