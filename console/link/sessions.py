"""How many sessions an SSH server allows on one connection: it says so only by refusing one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

SESSIONS: Final = 9
"""At once on one connection; OpenSSH allows 10 unless told otherwise."""

FEWEST: Final = 2
"""The event stream, and a request beside it."""


class Room:
    """Places of which there may become fewer while they are taken."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, and keep it."""
        while self.taken >= self.places:
            self._changed.clear()
            await self._changed.wait()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._changed.set()


class Sessions:
    """``open``: sessions on the connection. ``requests``: how many may be asked at once, the event stream beside them.

    A request that finds no place waits for another's session instead of asking for one that would be refused.
    """

    def __init__(self) -> None:
        self.open = Room(SESSIONS)
        self.requests = Room(SESSIONS - 1)

    def refused(self) -> None:
        """The server refused the session that has just taken a place."""
        self._allow(max(FEWEST, self.open.taken - 1))

    def anew(self) -> None:
        """Another connection: perhaps to another server, or to one with other settings."""
        self._allow(SESSIONS)

    def _allow(self, most: int) -> None:
        self.open.places, self.requests.places = most, most - 1
