"""A model server that only answers: ``python -m benchmarks.generate.stub --port P --low S --high S``.

It gives the same answer of 800 tokens to every request after a drawn latency, through SGLang's and OpenAI's routes, and
costs little enough that the client is what is measured. ``GET /stats`` tells what it saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Final

TOKENS: Final = 800
TEXT: Final = "a token here and one there, " * (TOKENS // 8)
MODEL: Final = "stub"
BLANKS: Final = " " * 8  # the prompt's length takes their place


def native_answer() -> tuple[bytes, bytes]:
    """What stands before and after the prompt's length in an answer to ``/generate``."""
    draw = random.Random(0)
    body = {
        "text": "",
        "output_ids": [draw.randrange(1000, 160_000) for _ in range(TOKENS - 1)] + [2],
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 2},
            "completion_tokens": TOKENS,
            "prompt_tokens": BLANKS,
        },
    }
    before, after = json.dumps(body).split(f'"{BLANKS}"')
    return before.encode(), after.encode()


def openai_answer(chat: bool) -> bytes:
    said = {"message": {"role": "assistant", "content": TEXT}} if chat else {"text": TEXT}
    body = {
        "id": "x",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, **said}],
        "usage": {"prompt_tokens": 100, "completion_tokens": TOKENS, "total_tokens": 100 + TOKENS},
    }
    return json.dumps(body).encode()


NATIVE: Final = native_answer()
CHAT: Final = openai_answer(chat=True)
COMPLETION: Final = openai_answer(chat=False)


class Stats:
    """When the first answer was asked for and the last one left, and each one's latency in order of arrival."""

    def __init__(self, low_s: float, high_s: float) -> None:
        self._draw = random.Random(0)
        self._low_s, self._high_s = low_s, high_s
        self.latencies: list[float] = []
        self.answered = self.running = self.most = 0
        self.first = self.last = 0.0

    def arrive(self) -> float:
        """How long this one is to take, in seconds."""
        if not self.latencies:
            self.first = time.monotonic()
        self.latencies.append(self._draw.uniform(self._low_s, self._high_s))
        self.running += 1
        self.most = max(self.most, self.running)
        return self.latencies[-1]

    def leave(self) -> None:
        self.running -= 1
        self.answered += 1
        self.last = time.monotonic()

    def told(self) -> bytes:
        return json.dumps(
            {
                "answered": self.answered,
                "most": self.most,
                "seconds": self.last - self.first,
                "latencies": self.latencies,
            }
        ).encode()


class Connection(asyncio.Protocol):
    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._data = b""
        self._transport: asyncio.WriteTransport | None = None
        self._last = False  # the client has asked for the connection's end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head_ends := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:head_ends].lower()
            self._last = b"connection: close" in head
            length = int(head.partition(b"content-length:")[2].partition(b"\r")[0] or 0)
            if len(self._data) < head_ends + 4 + length:
                return
            body = self._data[head_ends + 4 : head_ends + 4 + length]
            self._data = self._data[head_ends + 4 + length :]
            self._route(head.split(b" ", 2)[1], body)

    def _route(self, path: bytes, body: bytes) -> None:
        if path == b"/generate":
            ids = body[body.find(b'"input_ids"') :].partition(b"]")[0]
            self._after(lambda: b"%b%d%b" % (NATIVE[0], ids.count(b",") + 1, NATIVE[1]))
        elif path == b"/v1/chat/completions":
            self._after(lambda: CHAT)
        elif path == b"/v1/completions":
            self._after(lambda: COMPLETION)
        elif path == b"/stats":
            self._reply(self._stats.told())
        elif path in (b"/model_info", b"/get_model_info"):
            self._reply(json.dumps({"model_path": MODEL}).encode())
        elif path == b"/v1/models":
            self._reply(json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode())
        elif path == b"/health":
            self._reply(b"{}")
        else:
            self._reply(b"{}", status=404)

    def _after(self, answer: Callable[[], bytes]) -> None:
        delay = self._stats.arrive()

        def leave() -> None:
            self._stats.leave()
            self._reply(answer())

        if delay:
            asyncio.get_running_loop().call_later(delay, leave)
        else:
            leave()

    def _reply(self, body: bytes, *, status: int = 200) -> None:
        assert self._transport is not None
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)
        if self._last:
            self._transport.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--low", type=float, required=True, help="least latency, in seconds; 0 with 0 as the most: at once"
    )
    parser.add_argument("--high", type=float, required=True, help="most latency, in seconds")
    given = parser.parse_args()
    stats = Stats(given.low, given.high)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(stats), "127.0.0.1", given.port, backlog=1024
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
