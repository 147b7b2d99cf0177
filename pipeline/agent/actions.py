"""What an operator can ask for. A repeated request is answered, not done again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, get_args

from pipeline.agent.board import Board, Job
from pipeline.agent.rules.policy import FAILED_NEED, dependents
from pipeline.protocol import CRASHED, ActionReply, ActionRequest, JobState

Action = Literal["start", "stop", "restart", "restart-with-dependents", "kill", "waive"]
ACTIONS: Final[tuple[str, ...]] = get_args(Action)

UNSTARTED: Final = frozenset({JobState.WAITING, JobState.QUEUED})
PENDING: Final = UNSTARTED | {JobState.BACKOFF}

Effect = Callable[[], None]
"""What is done to processes once the decision is in the journal."""


def act(board: Board, job: Job, action: Action, request: ActionRequest) -> ActionReply:
    """Carry out a request on one job, or give the answer it was given before."""
    deeds = {
        "start": _start, "stop": _stop, "restart": _restart, "restart-with-dependents": _restart_all,
        "kill": _kill, "waive": _waive,
    }  # fmt: skip
    return once(board, request, f"{action} {job.spec.name}", [job], lambda: deeds[action](board, job, request))


def restart_crashed(board: Board, request: ActionRequest) -> ActionReply:
    """Start every job that crashed."""
    crashed = [job for job in board.jobs.values() if job.status.state in CRASHED and not job.removed]

    def deed() -> tuple[ActionReply, list[Effect]]:
        if not crashed:
            return ActionReply(True, "nothing has crashed"), []
        for job in crashed:
            _anew(board, job, request.by)
        return ActionReply(True, f"starting {', '.join(job.spec.name for job in crashed)}"), []

    return once(board, request, "restart all that crashed", crashed, deed)


def stop_all(board: Board, request: ActionRequest) -> ActionReply:
    """Stop every job; journaled as a whole, so that the death of the agent leaves none that was not asked to stop."""
    jobs = list(board.jobs.values())

    def deed() -> tuple[ActionReply, list[Effect]]:
        effects: list[Effect] = []
        for job in jobs:
            effects += _end(board, job, request, kill=False)[1]
        return ActionReply(True, "every job is stopped"), effects

    return once(board, request, "stop all", jobs, deed)


def withdraw(board: Board, request: ActionRequest) -> ActionReply:
    """What became of a request whose answer was lost. One that never came will not be done if it comes late."""
    reply = ActionReply(False, f"not done: taken back by {request.by} before it came")
    return once(board, request, "take back a request", [], lambda: (reply, []))


def once(
    board: Board,
    request: ActionRequest,
    title: str,
    jobs: list[Job],
    deed: Callable[[], tuple[ActionReply, list[Effect]]],
) -> ActionReply:
    """Journal a request's answer together with what it changes, then do what it does to processes."""
    earlier = board.store.reply_to(request.request)
    if earlier is not None:
        return earlier
    with board.transaction():
        reply, effects = deed()
        for job in jobs:
            board.save(job)
        board.store.set_reply(request.request, time.time(), reply)
        if reply.done:
            reason = f" ({request.reason})" if request.reason else ""
            board.tell(
                "action", f"{title}: {reply.text}{reason}", job=jobs[0] if len(jobs) == 1 else None, by=request.by
            )
    for effect in effects:
        effect()
    return reply


def _start(board: Board, job: Job, request: ActionRequest) -> tuple[ActionReply, list[Effect]]:
    name = job.spec.name
    if job.removed:
        return ActionReply(False, f"{name} is no longer in the plan"), []
    if job.run is not None:
        if job.status.state is JobState.STOPPING and job.run.stop_by:
            job.wanted, job.restarts, job.run.again = "run", (), True
            words = f"starts again when it has ended, as {request.by} asked"
            board.set(job, JobState.STOPPING, words, by=request.by, restarts=0)
            return ActionReply(True, f"{name} starts when what is being stopped has ended"), []
        return ActionReply(True, f"{name} is {job.status.state} already"), []
    if job.status.state is JobState.QUEUED and job.held:
        job.forced = request.by
        return ActionReply(True, f"starting {name} although {job.held}"), []
    if job.status.state in UNSTARTED and job.wanted == "run":
        return ActionReply(True, f"{name} {job.status.reason or 'is about to start'}"), []
    _anew(board, job, request.by)
    return ActionReply(True, f"starting {name}"), []


def _restart(board: Board, job: Job, request: ActionRequest) -> tuple[ActionReply, list[Effect]]:
    run = job.run
    if run is None or job.removed:
        return _start(board, job, request)
    job.wanted, job.restarts = "run", ()
    run.ask(request.by, again=True)
    board.set(job, JobState.STOPPING, f"being restarted, as {request.by} asked", by=request.by, restarts=0)
    return ActionReply(True, f"restarting {job.spec.name}"), [run.end]


def _restart_all(board: Board, job: Job, request: ActionRequest) -> tuple[ActionReply, list[Effect]]:
    """Restart a job and every job behind it; what somebody has stopped stays stopped."""
    reply, effects = _restart(board, job, request)
    if not reply.done:
        return reply, effects
    behind = [board.jobs[name] for name in dependents(job.spec.name, board.specs())]
    begun = [other for other in behind if other.wanted == "run" and (other.run or other.status.state not in UNSTARTED)]
    for other in begun:
        effects += _restart(board, other, request)[1]
        board.save(other)
    names = ", ".join(other.spec.name for other in begun)
    return ActionReply(True, f"{reply.text}, and behind it {names}" if names else reply.text), effects


def _stop(board: Board, job: Job, request: ActionRequest) -> tuple[ActionReply, list[Effect]]:
    return _end(board, job, request, kill=False)


def _kill(board: Board, job: Job, request: ActionRequest) -> tuple[ActionReply, list[Effect]]:
    return _end(board, job, request, kill=True)


def _end(board: Board, job: Job, request: ActionRequest, *, kill: bool) -> tuple[ActionReply, list[Effect]]:
    name, run = job.spec.name, job.run
    if run is not None:
        job.wanted = "stop"
        run.ask(request.by, kill=kill)
        word = "killed" if kill else "stopped"
        board.set(job, JobState.STOPPING, f"being {word}, as {request.by} asked", by=request.by)
        return ActionReply(True, f"{'killing' if kill else 'stopping'} {name}"), [lambda: run.end(kill=kill)]
    if job.status.state in PENDING:
        job.wanted = "stop"
        board.set(job, JobState.STOPPED, f"stopped by {request.by}", by=request.by)
        return ActionReply(True, f"{name} will not start"), []
    return ActionReply(True, f"{name} is not running: {job.status.state}"), []


def _waive(board: Board, job: Job, request: ActionRequest) -> tuple[ActionReply, list[Effect]]:
    name = job.spec.name
    if not request.reason.strip():
        return ActionReply(False, "waiving needs a reason: it will stand in the report"), []
    if job.status.state not in FAILED_NEED:
        return ActionReply(False, f"{name} is {job.status.state}: only a job that failed can be waived"), []
    board.set(
        job, job.status.state, job.status.reason, by=request.by, waived=request.reason.strip(),
        text=f"{name} waived: {request.reason.strip()}",
    )  # fmt: skip
    return ActionReply(True, f"others go on without {name}"), []


def _anew(board: Board, job: Job, by: str) -> None:
    """Make a job that has no attempt wait for its start, its restarts forgotten."""
    job.wanted, job.restarts = "run", ()
    board.set(job, JobState.WAITING, "", by=by, restarts=0, waived="", diagnosis=None, result=None)
