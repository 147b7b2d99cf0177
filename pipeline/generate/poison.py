"""Prompts that crash the server, found by what was in flight each time it went down.

A crash takes every request with it, so one crash blames all prompts that were in flight, and each comes back when the
server does. A prompt that was there at ``crashes`` of them is a suspect. From then on nothing is sent together with a
suspect: they are asked one at a time, each alone, before anybody else, which is as soon as the server is back, when
nothing runs. A suspect that is answered was innocent. One under which the server goes down again is the cause: nothing
else was there.

The counts live as long as the run: one that is started again counts anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator


class Crashes:
    """How often the server went down under each prompt."""

    def __init__(self, least: int) -> None:
        self.least = least
        self._under: Counter[str] = Counter()

    def under(self, key: str) -> int:
        """Count one more crash under this prompt, and say how many there were."""
        self._under[key] += 1
        return self._under[key]

    def suspicious(self, key: str) -> bool:
        return self._under[key] >= self.least

    def forget(self, key: str) -> None:
        """The prompt is settled."""
        self._under.pop(key, None)


class Turns:
    """Who may ask one server: everybody at once, or, while there are suspects, one of them alone."""

    def __init__(self) -> None:
        self.suspects: dict[str, None] = {}  # in the order they came
        self.asked_alone = ""  # the suspect that is asked now
        self._none = asyncio.Event()  # no suspects
        self._none.set()
        self._idle = asyncio.Event()  # nothing is asked together
        self._idle.set()
        self._together = 0
        self._alone = asyncio.Lock()

    def suspect(self, key: str) -> None:
        """From its next turn on this prompt goes alone and before all others. To be called within a turn of its own."""
        self.suspects[key] = None
        self._none.clear()

    def clear(self, key: str) -> None:
        """The prompt is settled, one way or the other."""
        self.suspects.pop(key, None)
        if not self.suspects:
            self._none.set()

    @contextlib.asynccontextmanager
    async def take(self, key: str) -> AsyncIterator[bool]:
        """Wait for the prompt's turn and hold it; True where it is alone."""
        if key in self.suspects:
            async with self._alone:
                while self._together:
                    await self._idle.wait()
                self.asked_alone = key
                try:
                    yield True
                finally:
                    self.asked_alone = ""
            return
        while self.suspects:
            await self._none.wait()
        self._together += 1
        self._idle.clear()
        try:
            yield False
        finally:
            self._together -= 1
            if not self._together:
                self._idle.set()
