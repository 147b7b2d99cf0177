"""What the agent does about disk space while jobs run."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from pipeline.agent import paths
from pipeline.agent.board import Board
from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.host.ballast import Ballast
from pipeline.agent.host.log_caps import LOOK_MAX_S
from pipeline.agent.host.senses import Senses
from pipeline.agent.rules.admission import in_words
from pipeline.agent.store import Store, full
from pipeline.protocol import DiskPolicy

OLD_EVERY_S: Final = 60.0
"""How often the files of ended attempts are looked at when no attempt has begun."""

ROOM_EVERY_S: Final = 1.0
RESERVE_EVERY_S: Final = 30.0
REMARK: Final = "journal"

log = logging.getLogger(__name__)


def opened(path: Path, ballast: Ballast) -> Store:
    """The journal, opened although the disk is full."""
    try:
        return Store(path)
    except sqlite3.OperationalError as error:
        if not full(error) or not ballast.drop():
            raise
        log.warning("the journal could not be opened (%s): its ballast was given up", error)
        return Store(path)


def give_up_when_full(board: Board, ballast: Ballast) -> None:
    """Have the ballast given up as soon as the journal cannot be written for want of space."""

    def give_up() -> None:
        size = ballast.drop()
        if size:
            board.note("host", f"disk full: the journal could not be written, {in_words(size)} kept for it were freed")

    board.store.on_full = give_up
    if ballast.given_up:
        board.note("host", "disk full: the journal could be opened only after the space kept for it was freed")


async def keep_room(board: Board, senses: Senses, ballast: Ballast) -> None:
    """Keep space for the journal, and it within bounds; say it when it cannot be written, and when it can be again.

    Never returns.
    """
    loop = asyncio.get_running_loop()
    since, reserve_at = None, loop.time()
    while True:
        try:
            if board.store.trouble:
                since = loop.time() if since is None else since
                board.remarks[REMARK] = (
                    f"the journal has not been written for {in_time(loop.time() - since)}: {board.store.trouble};"
                    " nothing is lost, it catches up when there is room"
                )
                with suppress(sqlite3.Error), board.transaction():  # the next try
                    board.store.set_mark(REMARK, time.time())
            elif since is not None:
                board.remarks.pop(REMARK, None)
                board.note("host", f"the journal is written again, after {in_time(loop.time() - since)}")
                since = None
            elif loop.time() >= reserve_at:
                reserve_at = loop.time() + RESERVE_EVERY_S
                board.store.prune()
                board.store.reserve()
                again, size = ballast.given_up, await senses.call(ballast.hold)
                if size and again:
                    board.note("host", f"the disk has room again: {in_words(size)} of it are kept for the journal")
        except (OSError, sqlite3.Error) as error:
            log.warning("the journal cannot be kept in shape: %s", error)
        await asyncio.sleep(ROOM_EVERY_S)


def policy_of(board: Board) -> DiskPolicy:
    return board.plan.disk if board.plan is not None else DiskPolicy()


async def keep_logs(board: Board, senses: Senses, workdir: Path) -> None:
    """Keep all logs within their caps; never returns."""
    loop = asyncio.get_running_loop()
    others_at = loop.time()
    handled: dict[str, tuple[int, DiskPolicy, int]] = {}  # by job: its newest attempt, the caps, the minute
    jobs = Path(paths.jobs_dir(workdir))
    while True:
        policy, due = policy_of(board), LOOK_MAX_S
        try:
            # Of ended jobs too: a log may have grown past its cap since the look before.
            newest = [(name, job.status.attempt) for name, job in board.jobs.items() if job.status.attempt]
            logs = [jobs.joinpath(name, str(number), "log") for name, number in newest]
            due = await senses.call(senses.log_caps.trim, logs, policy.log)
            for name, job in list(board.jobs.items()):
                mark = job.status.attempt, policy, int(loop.time() / OLD_EVERY_S)
                if handled.get(name) != mark:
                    await senses.call(
                        senses.log_caps.trim_old, jobs / name, job.status.attempt, policy.old_logs, policy.old_attempts
                    )
                    handled[name] = mark
            if loop.time() >= others_at:
                others_at = loop.time() + OLD_EVERY_S
                await _keep_logs_of_others(board, senses, jobs)
        except Exception:
            log.exception("the logs could not be kept within their caps; trying again")
        await asyncio.sleep(due)


async def _keep_logs_of_others(board: Board, senses: Senses, jobs: Path) -> None:
    """The same of jobs that are no longer in the plan: all their attempts are earlier ones."""
    found = await senses.call(senses.log_caps.next_numbers, jobs)
    policy = policy_of(board)
    # One that comes back into the plan meanwhile begins above these numbers.
    for name, number in found.items():
        if name not in board.jobs:
            await senses.call(senses.log_caps.trim_old, jobs / name, number, policy.old_logs, policy.old_attempts)
