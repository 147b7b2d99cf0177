"""Rows of the jobs table, derived from the agent's facts. Text in them is already safe to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from console.view import format as fmt
from console.view.text import clean
from pipeline.protocol import (
    CRASHED,
    LIVE,
    Diagnosis,
    Eta,
    JobSample,
    JobSpec,
    JobState,
    JobStatus,
    Plan,
    Progress,
    Result,
    ServerSample,
)

WHY_LIMIT: Final = 400
ENDED: Final = CRASHED | {JobState.DONE, JobState.STOPPED}
COMING_BACK: Final = LIVE | {JobState.BACKOFF}
"""States in which the figures of the attempt before stand until the new one reports."""


@dataclass(frozen=True)
class JobRow:
    """One job with everything a row or the job screen's head shows. ``up_s``: seconds the attempt has run, or ran."""

    name: str
    stage: str
    state: JobState
    why: str = ""
    since: float = 0.0
    up_s: float | None = None
    attempt: int = 0
    restarts: int = 0
    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    cpu_percent: float | None = None
    memory: int | None = None
    processes: int = 0
    done: float | None = None
    total: float | None = None
    unit: str = "records"
    share: float | None = None
    rate: float | None = None
    eta: Eta | None = None
    last_line: str = ""
    log_bytes: int = 0
    service: bool = False
    needs: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    result: Result | None = None
    progress: Progress | None = None
    server: ServerSample | None = None
    in_plan: bool = True
    before: bool = False  # progress and what follows from it are of the attempt before: this one has not reported yet
    waived: str = ""  # why the jobs behind it go on without it

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def crashed(self) -> bool:
        return self.state in CRASHED

    @property
    def failure(self) -> bool:
        """Crashed, and nobody has waived it."""
        return self.crashed and not self.waived

    @property
    def healthy(self) -> bool:
        """Running as it should: ending it destroys work, so the operator is asked."""
        return self.state in (JobState.RUNNING, JobState.READY)


def job_rows(
    plan: Plan | None,
    statuses: Mapping[str, JobStatus],
    samples: Mapping[str, JobSample],
    reported: Mapping[str, Progress],
    at: float,
) -> tuple[JobRow, ...]:
    """A row a job, in plan order, then those that are no longer in the plan. ``reported``: each job's newest words."""
    specs = {spec.name: spec for spec in plan.jobs} if plan else {}
    names = [*specs, *(name for name in statuses if name not in specs)]
    return tuple(
        _job_row(name, specs.get(name), statuses.get(name), samples.get(name), reported.get(name), at) for name in names
    )


def _job_row(
    name: str,
    spec: JobSpec | None,
    status: JobStatus | None,
    sample: JobSample | None,
    reported: Progress | None,
    at: float,
) -> JobRow:
    status = status or JobStatus(name=name, state=JobState.WAITING)
    live = status.state in LIVE
    sample = sample or JobSample()
    before = sample.progress is None and reported is not None and status.attempt > 1 and status.state in COMING_BACK
    progress = reported if before else sample.progress
    share = _share(status.state, progress)
    return JobRow(
        name=clean(name, 80),
        stage=clean(spec.stage if spec else name.partition(":")[0], 40),
        state=status.state,
        why=clean(_why(status, sample, progress), WHY_LIMIT),
        since=status.since,
        up_s=_up(status, sample, at),
        attempt=status.attempt,
        restarts=status.restarts,
        pid=status.pid,
        started_at=status.started_at,
        ended_at=status.ended_at,
        exit_code=status.exit_code,
        signal=status.signal,
        cpu_percent=sample.cpu_percent if live else None,
        memory=sample.memory if live else None,
        processes=sample.processes if live else 0,
        done=progress.done if progress else None,
        total=progress.total if progress else None,
        unit=clean(progress.unit, 20) if progress else "records",
        share=share,
        rate=sample.rate if live else None,
        eta=sample.eta if live else None,
        last_line=clean(sample.last_line, WHY_LIMIT),
        log_bytes=sample.log_bytes,
        service=spec.service if spec else False,
        needs=tuple(need.job for need in spec.needs) if spec else (),
        diagnosis=status.diagnosis,
        result=status.result,
        progress=progress,
        server=sample.server,
        in_plan=spec is not None,
        before=before,
        waived=clean(status.waived, WHY_LIMIT),
    )


def _up(status: JobStatus, sample: JobSample, at: float) -> float | None:
    if status.started_at is None:
        return None
    if status.state in LIVE:
        return sample.up_s if sample.up_s is not None else max(0.0, at - status.started_at)
    if status.ended_at is not None:
        return max(0.0, status.ended_at - status.started_at)
    return None


def _share(state: JobState, progress: Progress | None) -> float | None:
    if state is JobState.DONE:
        return 1.0
    if progress is None or not progress.total or not math.isfinite(progress.done / progress.total):
        return None
    return min(1.0, max(0.0, progress.done / progress.total))


def _why(status: JobStatus, sample: JobSample, progress: Progress | None) -> str:
    """The one thing worth saying about a job: why it is not well, what it waits for, or what it does."""
    if status.state in CRASHED:
        return status.reason or (status.diagnosis.summary if status.diagnosis else "") or _ended(status)
    if status.state is JobState.DONE:
        return (status.result.message if status.result else "") or status.reason
    if status.state is JobState.STALLED:
        return status.reason or "no progress"
    if sample.server is not None and status.state in LIVE:
        return _server_words(sample.server) or status.reason
    if status.state is JobState.RUNNING and progress is not None:
        if sample.progress is None:
            return status.reason or f"before the restart: {_count_words(progress)}"
        return status.reason or _progress_words(progress, sample.rate)
    return status.reason


def _ended(status: JobStatus) -> str:
    if status.signal is not None:
        return f"ended by signal {status.signal}"
    return f"exit code {status.exit_code}" if status.exit_code is not None else ""


def _server_words(server: ServerSample) -> str:
    if not server.ready:
        return server.step
    words = []
    if server.running is not None:
        words.append(f"{server.running} running")
    if server.queued:
        words.append(f"{server.queued} queued")
    if server.kv_use is not None:
        words.append(f"KV {fmt.percent(server.kv_use)}")
    if server.accept_length is not None:
        words.append(f"accept {fmt.number(server.accept_length)}")
    return ", ".join(words) or server.step


def _progress_words(progress: Progress, rate: float | None) -> str:
    if not progress.done and progress.total is None:
        return f"{progress.phase} · {progress.note}" if progress.note else progress.phase
    pace = f", {fmt.number(rate)}/s" if rate else ""
    words = f"{progress.phase}: {_count_words(progress)}{pace}"
    return f"{progress.note} · {words}" if progress.note else words


def _count_words(progress: Progress) -> str:
    done = fmt.count(progress.done)
    return f"{f'{done} of {fmt.count(progress.total)}' if progress.total else done} {progress.unit}"


def run_time(jobs: Iterable[JobRow], at: float) -> float | None:
    """See ``Snapshot.run_time``."""
    jobs = tuple(jobs)
    starts = [row.started_at for row in jobs if row.started_at is not None]
    if not starts:
        return None
    ends = [row.ended_at for row in jobs if row.ended_at is not None]
    over = all(row.state in ENDED for row in jobs) and ends
    return max(0.0, (max(ends) if over else at) - min(starts))


def longest(jobs: Iterable[JobRow]) -> JobRow | None:
    """See ``Snapshot.longest``."""
    timed = [row for row in jobs if row.live and row.eta is not None and math.isfinite(row.eta.seconds)]
    return max(timed, key=lambda row: row.eta.seconds if row.eta else 0.0, default=None)
