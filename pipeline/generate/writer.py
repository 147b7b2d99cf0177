"""The one writer: takes lines from the workers and writes them in bounded batches; a full disk holds everybody up."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pipeline.generate.store import Store

BATCH: Final = 64
BATCH_S: Final = 1.0
"""A kill costs at most the answers of one batch; they are generated again."""

RETRY_S: Final = 2.0
WAITING: Final = 256
"""Lines that may wait; more, and the workers wait with them."""


@dataclass(frozen=True)
class Line:
    """A line for ``file``; ``written`` is called when it is durable."""

    file: str
    data: bytes
    written: Callable[[], None]


class Writer:
    """``put`` from anywhere in the loop; ``run`` is a task that ends some time after ``close``, when all is durable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: asyncio.Queue[Line | None] = asyncio.Queue(WAITING)
        self.trouble = ""  # why nothing can be written at the moment
        self._closing = False

    async def put(self, line: Line) -> None:
        await self._queue.put(line)

    def close(self) -> None:
        """Let ``run`` end after what is queued. With a disk that takes nothing, what is queued is given up."""
        self._closing = True
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)  # full: ``run`` has work, and ends when that is done

    async def run(self) -> None:
        ended = False
        while not ended and not (self._closing and self._queue.empty()):
            first = await self._queue.get()
            if first is None:
                return
            batch = [first]
            until = time.monotonic() + BATCH_S
            while len(batch) < BATCH and not ended:
                try:
                    line = await asyncio.wait_for(self._queue.get(), max(0.0, until - time.monotonic()))
                except TimeoutError:
                    break
                if line is None:
                    ended = True
                else:
                    batch.append(line)
            if not await self._write(batch):
                return

    async def _write(self, batch: list[Line]) -> bool:
        files: dict[str, list[Line]] = {}
        for line in batch:
            files.setdefault(line.file, []).append(line)
        # File by file: what is durable must not be written again when a later file fails.
        for name, lines in files.items():
            data = b"".join(line.data for line in lines)
            while True:
                try:
                    await asyncio.to_thread(self._store.append, name, data)
                    break
                except OSError as error:
                    self.trouble = f"{name} cannot be written: {error.strerror or error}; answers wait in memory"
                    if self._closing:
                        return False
                    await asyncio.sleep(RETRY_S)
            self.trouble = ""
            for line in lines:
                line.written()
        return True
