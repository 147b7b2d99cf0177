"""A TCP relay that delays, stops forwarding without closing anything, as when a cable is pulled, or breaks off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

_HELD = 64  # pieces on their way in one direction


class Relay:
    """Use as an async context manager; connect to ``port``. ``one_way_s`` is how long bytes take in each direction."""

    def __init__(self, target: int, *, one_way_s: float = 0.0) -> None:
        self.target = target  # the server's port; may be changed
        self.one_way_s = one_way_s
        self._there, self._back = asyncio.Event(), asyncio.Event()
        self._left: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0  # accepted so far
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

    def cut_after(self, pieces: int) -> None:
        """Cut as soon as so many more pieces have passed from the client to the server; no answer passes from now."""
        self.cut(answers_only=pieces > 0)
        self._left = pieces

    @property
    def passes(self) -> bool:
        """Whether anything passes from the client to the server."""
        return self._there.is_set()

    def mend(self) -> None:
        self._left = None
        self._there.set()
        self._back.set()

    async def break_off(self) -> None:
        """Close every connection, on both sides."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await self._there.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            with contextlib.closing(far_writer):
                ends = {
                    asyncio.create_task(self._forward(reader, far_writer, self._there)),
                    asyncio.create_task(self._forward(far_reader, writer, self._back)),
                }
                try:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for end in ends:
                        end.cancel()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD)
        taking = asyncio.create_task(self._take(source, way))
        try:
            with contextlib.suppress(OSError):
                while True:
                    due, data = await way.get()
                    await asyncio.sleep(due - asyncio.get_running_loop().time())
                    if not data:
                        return
                    await passing.wait()
                    sink.write(data)
                    await sink.drain()
                    if passing is self._there and self._left is not None:
                        self._left -= 1
                        if self._left <= 0:
                            self.cut()
        finally:
            taking.cancel()

    async def _take(self, source: asyncio.StreamReader, way: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(65536)
            except OSError:
                data = b""
            await way.put((asyncio.get_running_loop().time() + self.one_way_s, data))
