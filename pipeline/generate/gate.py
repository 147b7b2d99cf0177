"""Whether the server is there: closed, every worker waits, and no retry is spent on a server that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

POLL_S: Final = 1.0


class Gate:
    """Starts closed; ``run`` opens it when the server answers its health check."""

    def __init__(self, healthy: Callable[[], Awaitable[bool]], *, poll_s: float = POLL_S) -> None:
        self._healthy = healthy
        self._poll_s = poll_s
        self._open = asyncio.Event()
        self._closed = asyncio.Event()
        self._closed.set()
        self._asking = asyncio.Lock()
        self._asked = 0.0  # when a health check last said yes
        self.closed_at: float | None = time.monotonic()
        self.losses = 0  # times the server was there and went away

    async def run(self) -> None:
        """Poll while closed; ends when cancelled."""
        while True:
            await self._closed.wait()
            while not await self._healthy():  # noqa: ASYNC110 - the event is on another machine
                await asyncio.sleep(self._poll_s)
            self._closed.clear()
            self.closed_at = None
            self._open.set()

    async def wait(self) -> None:
        await self._open.wait()

    async def suspect(self) -> bool:
        """After a failed request: True, and the gate is closed, where the server is indeed gone.

        Many workers fail at once when a server goes; one of them asks, the others take its answer.
        """
        asked_at = time.monotonic()
        async with self._asking:
            if self._open.is_set() and asked_at >= self._asked and not await self._check():
                self.losses += 1
                self.closed_at = time.monotonic()
                self._open.clear()
                self._closed.set()
            return not self._open.is_set()

    async def _check(self) -> bool:
        fine = await self._healthy()
        if fine:
            # Those who failed before this moment were answered by it.
            self._asked = time.monotonic()
        return fine
