"""An event loop in a thread of its own, for work that may wait for the disk: readers are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class LoopThread:
    """One thread; ends with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    async def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine there; what it returns or raises."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function there, and do not wait for it."""
        self._loop.call_soon_threadsafe(function, *arguments)
