"""Applying a plan by difference: only what the difference touches is stopped or started."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

from pipeline.agent import paths
from pipeline.agent.attempts.progress_reader import ProgressTail
from pipeline.agent.attempts.run import Run
from pipeline.agent.board import Board, Job
from pipeline.agent.notices import notifier
from pipeline.agent.rules import planning
from pipeline.protocol import ApplyReply, ApplyRequest, Change, JobSpec, JobState, Plan


async def apply(board: Board, workdir: Path, request: ApplyRequest) -> ApplyReply:
    """Say what a plan changes and, unless it is refused or a dry run, change it."""
    wrong = planning.faults(request.plan)
    if not wrong and not (Path(paths.release_dir(workdir, request.plan.release)) / "pipeline").is_dir():
        wrong = [f"release {request.plan.release} is not deployed under {workdir}/releases"]
    if wrong:
        return ApplyReply((), False, "; ".join(wrong[:5]))
    made = await asyncio.to_thread(_records, board, workdir, request.plan)
    found = planning.changes(board.plan, request.plan, board.statuses(), made)
    refused = planning.refusal(found, request.confirm)
    settings = planning.settings(board.plan, request.plan)
    if refused or request.dry_run:
        return ApplyReply(found, False, refused, settings)
    ended: list[Run] = []
    with board.transaction():
        notifier.begin(board, request.plan.notify)
        board.store.set_plan(request.plan)
        for change in found:
            _carry_out(board, request, change, ended)
        counted = Counter(change.effect for change in found if change.effect != "nothing")
        said = [*(f"{count} {effect}" for effect, count in counted.items()), *(f"{key} live" for key in settings)]
        words = ", ".join(said) or "no change"
        board.tell("plan", f"plan of {request.plan.run} applied: {words}", by=request.by)
        board.take_plan(request.plan)
    try:
        for job in list(board.jobs.values()):
            if job.run is not None and job.run.grace_s != job.spec.stop_grace_s:
                await _allow(board, job, job.run)
    finally:  # their end is journaled: nothing else would tell them
        for run in ended:
            run.end()
    return ApplyReply(found, True, settings=settings)


def _carry_out(board: Board, request: ApplyRequest, change: Change, ended: list[Run]) -> None:
    job = board.jobs.get(change.job)
    spec = next((spec for spec in request.plan.jobs if spec.name == change.job), None)
    if spec is None:
        if job is not None:
            _remove(board, job, request.by, ended)
        return
    if job is None:
        _add(board, spec)
        return
    job.spec = spec
    was_removed, job.removed = job.removed, False
    if change.effect in ("restarts", "discards") or was_removed:
        if was_removed:
            job.wanted = "run" if spec.autostart else "stop"
            board.set(job, job.status.state, job.status.reason, by=request.by, restarts=0)
        _restart(board, job, request.by, change.effect, ended)
    else:
        board.save(job)


async def _allow(board: Board, job: Job, run: Run) -> None:
    try:
        await asyncio.to_thread(run.allow, job.spec.stop_grace_s)
    except OSError as error:
        board.note("agent", f"{run.job}: its new grace is for the next attempt only: {error}")


def _add(board: Board, spec: JobSpec) -> None:
    job = Job(spec, planning.fresh_status(spec, time.time()), "run" if spec.autostart else "stop")
    board.jobs[spec.name] = job
    board.save(job)
    board.tell("state", f"{spec.name} {job.status.state}", job=job)


def _remove(board: Board, job: Job, by: str, ended: list[Run]) -> None:
    if job.run is None:
        board.drop(job)
        return
    job.removed, job.wanted = True, "stop"
    job.run.ask(by)
    ended.append(job.run)
    board.set(job, JobState.STOPPING, "no longer in the plan", by=by)


def _restart(board: Board, job: Job, by: str, effect: str, ended: list[Run]) -> None:
    why = "what it made was made with other settings" if effect == "discards" else "its settings changed"
    job.restarts = ()
    if job.run is not None and job.wanted == "run":
        job.run.ask(by, again=True)
        ended.append(job.run)
        board.set(job, JobState.STOPPING, f"being restarted: {why}", by=by, restarts=0)
    elif job.wanted == "run":
        board.set(job, JobState.WAITING, why, by=by, restarts=0, waived="", diagnosis=None, result=None)
    else:
        board.save(job)


def _records(board: Board, workdir: Path, plan: Plan) -> dict[str, int]:
    """Records that jobs whose content changes have made; a stopped or failed one's are in its progress file."""
    found = {}
    for spec in plan.jobs:
        job = board.jobs.get(spec.name)
        if job is None or job.spec.content_hash == spec.content_hash or not job.status.attempt:
            continue
        count = planning.records_of(job.status, job.sample.progress)
        if not count:
            tail = ProgressTail(Path(paths.attempt_dir(workdir, spec.name, job.status.attempt)) / "progress.jsonl")
            tail.poll()
            count = tail.result.records if tail.result else planning.records_of(job.status, tail.progress)
        found[spec.name] = count
    return found
