"""Who was agent before, and whether it left by itself: its successor says so."""

from __future__ import annotations

import logging
import os
import sqlite3
from dataclasses import dataclass, replace
from typing import Final

from pipeline.agent.board import Board
from pipeline.agent.keeper import ENDED_VARIABLE

MARK: Final = "agent"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sign:
    """What an agent writes of itself into the journal."""

    pid: int
    container: str
    left: bool = False  # it ended because it was told to


def arrive(board: Board, pid: int, release: str, container: str) -> None:
    """Say that an agent is there, and of the one before it that it was killed, where it was."""
    before, how = board.store.mark(MARK, Sign), os.environ.pop(ENDED_VARIABLE, "")
    text = f"agent {pid} of release {release} is there"
    if before is not None and not before.left:
        if before.container != container:
            text += f"; agent {before.pid} went with the container, which was restarted"
        else:
            text += f"; agent {before.pid} before it {'ended with ' + how if how else 'ended, nobody saw how'}"
    board.note("agent", text)
    _sign(board, Sign(pid, container))


def leave(board: Board) -> None:
    """Note that this agent ends because it was told to."""
    mine = board.store.mark(MARK, Sign)
    if mine is not None and mine.pid == os.getpid():
        _sign(board, replace(mine, left=True))


def _sign(board: Board, sign: Sign) -> None:
    try:
        board.store.set_mark(MARK, sign)
    except sqlite3.Error as error:  # then its successor says that it was killed
        log.warning("the agent's arrival or end could not be noted: %s", error)
