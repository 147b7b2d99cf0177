"""A TCP relay that can stop forwarding without closing anything, as a network does when a cable is pulled."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Relay:
    """Use as an async context manager; connect to ``port``."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """From now on nothing passes, in either direction, on old connections and new ones."""
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await self._open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            with contextlib.closing(far_writer):
                ends = {
                    asyncio.create_task(self._forward(reader, far_writer)),
                    asyncio.create_task(self._forward(far_reader, writer)),
                }
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
