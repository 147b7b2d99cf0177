"""A TCP relay that stops forwarding without closing anything, as when a cable is pulled, or breaks connections off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Relay:
    """Use as an async context manager; connect to ``port``."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.mend()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self.break_off()

    def cut(self, *, answers_only: bool = False) -> None:
        """From now on nothing passes, on old connections and new ones; or nothing from the server to the client."""
        self._back.clear()
        if not answers_only:
            self._there.clear()

    def mend(self) -> None:
        self._there.set()
        self._back.set()

    async def break_off(self) -> None:
        """Close every connection, on both sides."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await self._there.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            with contextlib.closing(far_writer):
                ends = {
                    asyncio.create_task(_forward(reader, far_writer, self._there)),
                    asyncio.create_task(_forward(far_reader, writer, self._back)),
                }
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            await passing.wait()
            sink.write(data)
            await sink.drain()
