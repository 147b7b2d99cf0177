"""Calls a URL once a minute while the agent looks at its jobs: whoever watches it hears of a dead host by silence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from pipeline.agent.board import Board
from pipeline.agent.notices.outside import Outside, Trouble
from pipeline.agent.notices.webhooks import Answer

EVERY_S: Final = 60.0
LOOK_S: Final = 1.0

log = logging.getLogger(__name__)


async def beat(board: Board, outside: Outside, looking: Callable[[], bool], every_s: float = EVERY_S) -> None:
    """Call the heartbeat of the plan; never returns. ``looking``: whether the agent does what it is there for now."""
    trouble = Trouble(board, "heartbeat")
    due, called = 0.0, ""
    while True:
        name = board.plan.notify.heartbeat if board.plan is not None else ""
        if not name:
            trouble.clear()
        elif (time.monotonic() >= due or name != called) and looking():
            due, called = time.monotonic() + every_s, name
            try:
                answer = await outside.call(await outside.place(name))
            except Exception as error:
                log.exception("the heartbeat failed")
                answer = Answer("later", "failed", str(error))
            if answer.fate == "delivered":
                trouble.clear()
            else:
                trouble.set(answer.brief, answer.text)
        await asyncio.sleep(min(LOOK_S, every_s))
