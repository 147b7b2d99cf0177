"""What the agent does about disk space while jobs run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from pipeline.agent import paths
from pipeline.agent.board import Board
from pipeline.agent.log_caps import LOOK_MAX_S
from pipeline.agent.senses import Senses
from pipeline.protocol import DiskPolicy

OLD_EVERY_S: Final = 60.0
"""How often the files of ended attempts are looked at when no attempt has begun."""

log = logging.getLogger(__name__)


def policy_of(board: Board) -> DiskPolicy:
    return board.plan.disk if board.plan is not None else DiskPolicy()


async def keep_logs(board: Board, senses: Senses, workdir: Path) -> None:
    """Keep all logs within their caps; never returns."""
    loop = asyncio.get_running_loop()
    handled: dict[str, tuple[int, DiskPolicy, int]] = {}  # by job: its newest attempt, the caps, the minute
    while True:
        policy, due = policy_of(board), LOOK_MAX_S
        try:
            due = await senses.call(senses.log_caps.trim, [run.log for run in board.runs()], policy.log)
            for name, job in list(board.jobs.items()):
                mark = job.status.attempt, policy, int(loop.time() / OLD_EVERY_S)
                if handled.get(name) != mark:
                    folder = Path(paths.attempt_dir(workdir, name, 0)).parent
                    await senses.call(
                        senses.log_caps.trim_old, folder, job.status.attempt, policy.old_logs, policy.old_attempts
                    )
                    handled[name] = mark
        except Exception:
            log.exception("the logs could not be kept within their caps; trying again")
        await asyncio.sleep(due)
