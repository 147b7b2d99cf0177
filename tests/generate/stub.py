"""A small HTTP server that speaks /generate at once, and misbehaves where a prompt asks for it: ``python -m``.

The first id of a prompt says what its first attempts get (see ODD); from the next attempt on it is answered. Written on
bare sockets, because a proper web server cannot break the protocol.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from typing import Any

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
) = range(101, 112)
WRONG_COUNT = 112
NO_END_ID = 113
ODD = (RESET, ERROR_500, BUSY_429, HANG, HALF_JSON, SHORT_BODY, ERROR_200, ABORTED, HANG_AFTER_HEADERS, WRONG_COUNT)


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
        if path == "/model_info":
            return self.reply(writer, 200, {"model_path": self.arguments.model_path})
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
        self.seen.append({"ids": ids, "sampling": request["sampling_params"], "rid": request["rid"]})
        kind, place = ids[0], tuple(ids)
        self.attempts[place] += 1
        await asyncio.sleep(random.uniform(0.5, 1.5) * self.arguments.latency)
        output = answer_to(ids)
        good = {
            "text": "",
            "output_ids": output,
            "meta_info": {
                "id": request["rid"],
                "finish_reason": {"type": "stop", "matched": 2},
                "prompt_tokens": len(ids),
                "completion_tokens": len(output),
            },
        }
        if kind == REFUSED_400:
            return self.reply(writer, 400, {"error": {"message": "The input is longer than the context length"}})
        if kind == NO_END_ID:
            good["output_ids"] = output[:-1]
            good["meta_info"]["completion_tokens"] -= 1  # type: ignore[index]
            return self.reply(writer, 200, good)
        if kind == ALWAYS_500:
            return self.reply(writer, 500, {})
        if kind == NORMAL or self.attempts[place] > (2 if kind == ERROR_500 else 1):
            return self.reply(writer, 200, good)
        return await self.misbehave(kind, good, writer)

    async def misbehave(self, kind: int, good: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        whole = json.dumps(good).encode()
        if kind == ERROR_500:
            return self.reply(writer, 500, {"error": "boom"})
        if kind == BUSY_429:
            return self.reply(writer, 429, {})
        if kind == ERROR_200:
            return self.reply(writer, 200, {"error": {"message": "not today"}})
        if kind == ABORTED:
            good["meta_info"]["finish_reason"] = {"type": "abort", "message": "shutting down"}
            return self.reply(writer, 200, good)
        if kind == WRONG_COUNT:
            good["meta_info"]["completion_tokens"] += 1
            return self.reply(writer, 200, good)
        if kind == HALF_JSON:
            return self.reply(writer, 200, whole[: len(whole) // 2])
        if kind == SHORT_BODY:
            writer.write(self.head(200, len(whole)) + whole[: len(whole) // 2])
            await writer.drain()
            return False
        if kind == RESET:
            writer.write(self.head(200, len(whole)) + whole[:20])
            await writer.drain()
            writer.transport.abort()
            return False
        if kind == HANG_AFTER_HEADERS:
            writer.write(self.head(200, len(whole)))
            await writer.drain()
        await asyncio.sleep(3600)
        return False

    def reply(self, writer: asyncio.StreamWriter, status: int, body: Any) -> bool:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(self.head(status, len(data)) + data)
        return True

    def head(self, status: int, length: int) -> bytes:
        return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--latency", type=float, default=0.005)
    parser.add_argument("--model-path", default="stub")
    stub = Stub(parser.parse_args())
    server = await asyncio.start_server(stub.connection, "127.0.0.1", stub.arguments.port, limit=1 << 24)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
