"""A shim that is started before an attempt needs one: Python's start is most of what a restart waits for.

At most one waits. An attempt that finds none, or one that does not answer, gets a shim of its own; whoever of them
creates the attempt's claim owns it, as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.agent.attempts import handover
from pipeline.agent.attempts.identity import Process, identify, send
from pipeline.agent.attempts.records import claimed
from pipeline.agent.attempts.run import SHIM, Run, gone, readable, spawn

PATIENCE_S: Final = 1.0
"""How long a shim that was given an attempt may take to claim it."""

PAUSE_S: Final = 0.1
"""After a start the next spare waits for its turn: the job that starts comes first."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """A shim without an attempt: what it reads its attempt from, and what it says of the start."""

    process: Process
    errand: int
    word: int


class Spare:
    """The shim that waits, if one does."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._waiting: Waiting | None = None
        self._due: asyncio.TimerHandle | None = None

    async def start(self, run: Run, secrets: Mapping[str, str]) -> int | None:
        """Start the shim of an attempt; a handle that tells what became of it, as ``spawn`` gives. None: stopped."""
        self._later()
        word = await self._hand_over(run, secrets)
        if word is None and not run.stop_by:
            word = spawn(run, secrets)
        return word

    def close(self) -> None:
        """Let the shim that waits end."""
        if self._due is not None:
            self._due.cancel()
        if self._waiting is not None:
            os.close(self._waiting.errand)
            os.close(self._waiting.word)
            self._waiting = None

    def prepare(self) -> None:
        """Have one wait."""
        if self._waiting is not None:
            return
        try:
            self._waiting = _boot(self._workdir)
        except OSError as error:
            log.warning("no shim can be started ahead: %s", error)

    def _later(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(PAUSE_S, self.prepare)

    async def _hand_over(self, run: Run, secrets: Mapping[str, str]) -> int | None:
        """Give the attempt to the shim that waits; None when there is none, or it did not take it."""
        shim, self._waiting = self._waiting, None
        if shim is None:
            return None
        given = handover.give(shim.errand, str(run.folder), secrets)
        os.close(shim.errand)
        if given:
            run.shim = shim.process
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(readable(shim.word), PATIENCE_S)
            if claimed(run.folder):
                return shim.word
        log.warning("the shim that waited does not take attempt %d of %s: starting another", run.number, run.job)
        send(shim.process, signal.SIGKILL)
        await gone(shim.process)
        if claimed(run.folder):  # just now; what came of it is in the files
            return shim.word
        os.close(shim.word)
        run.shim = None
        return None


def _boot(workdir: Path) -> Waiting:
    errand_read, errand = os.pipe()
    word, word_write = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [*SHIM, handover.SPARE, str(workdir)],
            {},
            setsid=True,
            setsigmask=(),
            file_actions=[(os.POSIX_SPAWN_DUP2, errand_read, 0), (os.POSIX_SPAWN_DUP2, word_write, 1)],
        )
    except OSError:
        os.close(errand)
        os.close(word)
        raise
    finally:
        os.close(errand_read)
        os.close(word_write)
    process = identify(pid)
    assert process is not None  # a child of ours, not yet waited for
    return Waiting(process, errand, word)
