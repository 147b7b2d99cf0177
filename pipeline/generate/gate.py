"""Whether the server is there: closed, every worker waits, and no retry is spent on a server that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

POLL_S: Final = 1.0


class Gate:
    """Starts closed; ``run`` opens it when the server answers its health check and ``welcome`` says that it is the
    right one. ``opened`` is called each time.
    """

    def __init__(
        self,
        healthy: Callable[[], Awaitable[bool]],
        *,
        welcome: Callable[[], Awaitable[bool]],
        opened: Callable[[], None],
        poll_s: float = POLL_S,
    ) -> None:
        self._healthy = healthy
        self._welcome = welcome
        self._opened = opened
        self._poll_s = poll_s
        self._open = asyncio.Event()
        self._closed = asyncio.Event()
        self._closed.set()
        self._asking = asyncio.Lock()
        self._asked = 0.0  # when a health check last said yes
        self.closed_at: float | None = time.monotonic()
        self.losses = 0  # times the server was there and went away

    async def run(self) -> None:
        """Poll while closed; ends when cancelled, or by what ``welcome`` raises."""
        while True:
            await self._closed.wait()
            while not (await self._healthy() and await self._welcome()):  # noqa: ASYNC110 - the event is elsewhere
                await asyncio.sleep(self._poll_s)
            self._closed.clear()
            self.closed_at = None
            self._open.set()
            self._opened()

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
