"""A small HTTP server that speaks /generate at once, and misbehaves where a prompt asks for it: ``python -m``.

The first id of a prompt says what its first attempts get (see ODD); from the next attempt on it is answered. Written on
bare sockets, because a proper web server cannot break the protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections import Counter
from typing import Any

from pipeline.generate.outcome import CUT, GARBLED, LATE
from pipeline.generate.outcome import HUGE as TOO_LARGE

NORMAL = 100
(
    RESET,
    ERROR_500,
    BUSY_429,
    HANG,
    HALF_JSON,
    REFUSED_400,
    SHORT_BODY,
    ERROR_200,
    ABORTED,
    ALWAYS_500,
    HANG_AFTER_HEADERS,
    WRONG_COUNT,
    NO_END_ID,
    TRICKLE,
    SHORT_LENGTH,
    CHUNKED_CUT,
    HUGE,
    ENDLESS,
    NOT_JSON,
    DEEP_JSON,
    REDIRECT,
    TIMEOUT_408,
    ERROR_503,
    CLOSED,
    GIBBERISH,
    OF_ANOTHER,
    TWICE,
    EMPTY_ONCE,
    ALWAYS_EMPTY,
    ALWAYS_ABORTED,
    LOOPING,
    CUT_AT_BUDGET,
    THINKING,
    POISON,
) = range(101, 135)
ODD = {
    RESET: CUT,
    CLOSED: CUT,
    SHORT_BODY: CUT,
    CHUNKED_CUT: CUT,
    HANG: LATE,
    HANG_AFTER_HEADERS: LATE,
    TRICKLE: LATE,
    HALF_JSON: GARBLED,
    SHORT_LENGTH: GARBLED,
    NOT_JSON: GARBLED,
    DEEP_JSON: GARBLED,
    ERROR_200: GARBLED,
    WRONG_COUNT: GARBLED,
    GIBBERISH: GARBLED,
    OF_ANOTHER: GARBLED,
    HUGE: TOO_LARGE,
    ENDLESS: TOO_LARGE,
    ERROR_500: "HTTP 500",
    ERROR_503: "HTTP 503",
    TIMEOUT_408: "HTTP 408",
    BUSY_429: "HTTP 429",
    REDIRECT: "HTTP 307",
    ABORTED: "answer aborted",
    EMPTY_ONCE: "answer empty",
}
"""What the first attempt gets, and what generate counts it as."""

THOUGHT = 3  # the id that ends the thinking


def answer_to(ids: list[int]) -> list[int]:
    """The same ids for the same prompt, so that a test can check them."""
    return [7 + (sum(ids) * (place + 1)) % 900 for place in range(3 + sum(ids) % 17)] + [2]


class Stub:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.attempts: Counter[tuple[int, ...]] = Counter()
        self.seen: list[dict[str, Any]] = []
        self.running = 0
        self.most = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method_path = head.split(b"\r\n", 1)[0].split(b" ")
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                body = await reader.readexactly(length)
                if not await self.route(method_path[1].decode(), body, writer):
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def route(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        if path == "/health":
            return self.reply(writer, 200, {})
        if path in ("/model_info", "/get_model_info"):
            return self.reply(writer, 200, {"model_path": self.arguments.model_path})
        if path == "/server_info" and self.arguments.max_running:
            return self.reply(writer, 200, {"max_running_requests": self.arguments.max_running})
        if path == "/seen":
            return self.reply(writer, 200, {"bodies": self.seen, "most": self.most})
        if path == "/generate":
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                return await self.generate(json.loads(body), writer)
            finally:
                self.running -= 1
        return self.reply(writer, 404, {})

    async def generate(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        ids = request["input_ids"]
        self.seen.append(
            {"ids": ids, "sampling": request["sampling_params"], "rid": request["rid"], "at": time.monotonic()}
        )
        kind, place = ids[0], tuple(ids)
        self.attempts[place] += 1
        await asyncio.sleep(random.uniform(0.5, 1.5) * self.arguments.latency)
        output = answer_to(ids)
        good: dict[str, Any] = {
            "text": "",
            "output_ids": output,
            "meta_info": {
                "id": request["rid"],
                "finish_reason": {"type": "stop", "matched": 2},
                "prompt_tokens": len(ids),
                "completion_tokens": len(output),
            },
        }
        meta: dict[str, Any] = good["meta_info"]

        def say(ids: list[int], finish: str = "stop") -> bool:
            good["output_ids"], meta["completion_tokens"] = ids, len(ids)
            meta["finish_reason"] = {"type": finish, **({"matched": 2} if finish == "stop" else {})}
            return self.reply(writer, 200, good)

        if kind == POISON:
            os._exit(1)
        if kind == REFUSED_400:
            return self.reply(writer, 400, {"error": {"message": f"The input, {ids[1]} tokens, is too long"}})
        if kind == NO_END_ID:
            good["output_ids"] = output[:-1]
            meta["completion_tokens"] -= 1
            return self.reply(writer, 200, good)
        if kind == ALWAYS_500:
            return self.reply(writer, 500, {})
        if kind == ALWAYS_ABORTED:
            return say(output[:2], "abort")
        if kind == ALWAYS_EMPTY:
            return say([2])
        if kind == LOOPING:
            return say([7, 8, 9] * 21, "length")
        if kind == CUT_AT_BUDGET:
            return say(output[:-1], "length")
        if kind == THINKING:
            return say([7, 8, THOUGHT, *output])
        if kind == NORMAL or self.attempts[place] > (2 if kind == ERROR_500 else 1):
            self.reply(writer, 200, good)
            return kind != TWICE or self.reply(writer, 200, good)
        return await self.misbehave(kind, good, writer)

    async def misbehave(self, kind: int, good: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        whole = json.dumps(good).encode()
        plain: dict[int, tuple[int, Any, str]] = {
            ERROR_500: (500, {"error": "boom"}, ""),
            ERROR_503: (503, {}, ""),
            TIMEOUT_408: (408, {}, ""),
            BUSY_429: (429, {}, "retry-after: 1\r\n"),
            REDIRECT: (307, {}, "location: /elsewhere\r\n"),
            ERROR_200: (200, {"error": {"message": "not today"}}, ""),
            HALF_JSON: (200, whole[: len(whole) // 2], ""),
            NOT_JSON: (200, b"<html>Welcome to the proxy</html>", ""),
            DEEP_JSON: (200, b"[" * 100_000, ""),
            HUGE: (200, whole[:-1] + b" " * (4 << 20) + b"}", ""),
        }
        if kind in plain:
            return self.reply(writer, *plain[kind])
        meta = good["meta_info"]
        if kind == ABORTED:
            meta["finish_reason"] = {"type": "abort", "message": "shutting down"}
        elif kind == EMPTY_ONCE:
            good["output_ids"], meta["completion_tokens"] = [2], 1
        elif kind == WRONG_COUNT:
            meta["completion_tokens"] += 1
        elif kind == OF_ANOTHER:
            meta["id"] = "B1/another"
        if kind in (ABORTED, EMPTY_ONCE, WRONG_COUNT, OF_ANOTHER):
            return self.reply(writer, 200, good)
        if kind == TWICE:
            return self.reply(writer, 200, good) and self.reply(writer, 200, good)
        if kind == CLOSED:
            return False
        if kind == GIBBERISH:
            writer.write(b"SSH-2.0-not a web server\r\n\r\n")
            return False
        if kind == SHORT_LENGTH:
            writer.write(self.head(200, len(whole) - 9) + whole)
            return True
        chunked = b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        if kind == CHUNKED_CUT:
            writer.write(chunked + b"%x\r\n" % len(whole) + whole[:-5])
            return False
        if kind == ENDLESS:
            writer.write(chunked)
            while not writer.is_closing():
                writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await writer.drain()
            return False
        if kind == SHORT_BODY:
            writer.write(self.head(200, len(whole)) + whole[: len(whole) // 2])
            await writer.drain()
            return False
        if kind == RESET:
            writer.write(self.head(200, len(whole)) + whole[:20])
            await writer.drain()
            writer.transport.abort()
            return False
        if kind in (HANG_AFTER_HEADERS, TRICKLE):
            writer.write(self.head(200, len(whole)))
        for byte in whole if kind == TRICKLE else b"":
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0.2)
        await asyncio.sleep(3600)
        return False

    def reply(self, writer: asyncio.StreamWriter, status: int, body: Any, more: str = "") -> bool:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(self.head(status, len(data), more) + data)
        return True

    def head(self, status: int, length: int, more: str = "") -> bytes:
        lines = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {length}\r\n\r\n"
        return lines.encode()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.005)
    parser.add_argument("--model-path", default="stub")
    parser.add_argument("--max-running", type=int, help="what it says of itself; it does not hold to it")
    stub = Stub(parser.parse_args())
    server = await asyncio.start_server(stub.connection, "127.0.0.1", stub.arguments.port, limit=1 << 24)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
