"""A real HTTP server on loopback that answers as it is told and keeps what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

Reply = tuple[int, dict[str, str], bytes]

OK: Reply = (200, {}, b"ok")


@dataclass
class Asked:
    """One request. ``at`` is monotonic."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def text(self) -> str:
        return str(self.json["message"])


@dataclass
class Receiver:
    """``answer`` makes the reply to a request; None: say nothing and keep the connection open."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], Reply | None] = lambda _: OK
    dropped: int = 0  # connections that ended before they were answered

    def url(self, path: str = "/hook-4711") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, target, _ = first.split(" ")
            asked = Asked(method, target, headers, body, time.monotonic())
            self.asked.append(asked)
            reply = self.answer(asked)
            if reply is None:
                await reader.read()  # until the other side gives up
                self.dropped += 1
            else:
                status, extra, said = reply
                fields = {"Content-Length": str(len(said)), "Connection": "close", **extra}
                writer.write(f"HTTP/1.1 {status} X\r\n".encode())
                writer.write("".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode())
                writer.write(b"\r\n" + said)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def receiver(port: int = 0) -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
