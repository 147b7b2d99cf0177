"""The event stream: every event after a number, once and in order, and a beat at least every two seconds.

Where the journal does not reach back so far, a line says which numbers are missing.

The stream pulls: a reader has a number and no queue, so a slow one costs one block of memory and misses nothing. One
that takes nothing for ten seconds is cut off; it comes back with its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from pipeline.agent.board import Board
from pipeline.protocol import BEAT_S, Event, Pruned, StreamLine

BLOCK_EVENTS: Final = 200
SEND_S: Final = 10.0
BEAT_GAP_S: Final = 0.05
"""The least time between two beats, however much changes."""

ABORT: Final = "draftdeck.abort"
"""The scope's key of what ends its connection at once."""

Older = Callable[[int, int], Awaitable[Sequence[Event]]]
"""Gives events that are not in memory any more: after a number, and how many at most."""


class EventStream:
    """An ASGI response that goes on until its reader leaves."""

    def __init__(self, board: Board, since: int, older: Older) -> None:
        self._board = board
        self._since = since
        self._older = older

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.ensure_future(self._feed(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(sending.exception(), TimeoutError):
                scope[ABORT]()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _feed(self, send: Send) -> None:
        changed = self._board.listen()
        loop = asyncio.get_running_loop()
        try:
            while not self._board.closing:
                changed.clear()
                await self._events(send)
                await self._send(send, msgspec.json.encode(StreamLine(beat=self._board.beat())) + b"\n")
                sent = loop.time()
                try:
                    await asyncio.wait_for(changed.wait(), BEAT_S - 0.05)
                except TimeoutError:
                    continue
                await self._events(send)
                await asyncio.sleep(max(0.0, sent + BEAT_GAP_S - loop.time()))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._board.unlisten(changed)

    async def _events(self, send: Send) -> None:
        while self._since < self._board.shown.seq:
            events: Sequence[Event] | None = self._board.shown.after(self._since, BLOCK_EVENTS)
            if events is None:
                events = await self._older(self._since, BLOCK_EVENTS)
            if not events:
                return
            lines = b"".join(msgspec.json.encode(line) + b"\n" for line in numbered(events, self._since))
            await self._send(send, lines)
            self._since = events[-1].seq

    async def _send(self, send: Send, data: bytes) -> None:
        await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": True}), SEND_S)


def numbered(events: Sequence[Event], since: int) -> Iterator[StreamLine]:
    """The events that follow on number ``since``, and before each that does not, what is missing."""
    for event in events:
        if event.seq > since + 1:
            yield StreamLine(pruned=Pruned(since, event.seq))
        yield StreamLine(event=event)
        since = event.seq


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
