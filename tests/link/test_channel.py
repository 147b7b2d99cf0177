"""HTTP and raw bytes through the bridge, against both servers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from console.link import channel as channel_room
from console.link.channel import LINK_HEADER, AgentChannel, bridge_argv
from console.link.connect import Endpoint
from console.link.deploy import local_release
from console.link.reconnect import Link
from console.link.sessions import SESSIONS
from pipeline.agent import paths
from tests.link.conftest import Server

SIZE = 8 << 20
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def release(workdir: Path) -> str:
    """The pipeline's code in its place, as a deploy leaves it."""
    name = local_release().name
    source = Path(paths.own_root()) / "pipeline"
    shutil.copytree(source, workdir / "releases" / name / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    return name


@contextlib.asynccontextmanager
async def socket_server(
    workdir: Path,
    serve: Serve,
    *,
    read_only: bool = False,
) -> AsyncIterator[None]:
    """Something on the UNIX socket where the agent would be."""
    path = paths.socket_path(workdir, read_only=read_only)
    server = await asyncio.start_unix_server(serve, path)
    Path(path).chmod(0o600)  # noqa: ASYNC240
    try:
        yield
    finally:
        server.close()
        Path(path).unlink()  # noqa: ASYNC240


def answers(text: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            await writer.drain()

    return serve


async def test_many_bytes_both_ways_and_half_closed(server: Server, workdir: Path, release: str) -> None:
    there, here = channel_room.ANSWER + os.urandom(SIZE), os.urandom(SIZE)
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            data, _ = await asyncio.gather(reader.read(-1), _write(writer, there[: SIZE // 2]))
            seen.set_result(hashlib.sha256(data).hexdigest())
            await _write(writer, there[SIZE // 2 :])  # the answer goes on after the question has ended

    async with Link(server.endpoint) as link, socket_server(workdir, serve):
        await link.connected(20)
        async with AgentChannel(link, bridge_argv(str(workdir), sys.executable, release)) as channel:
            folder = Path(channel.address).parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            reader, writer = await asyncio.open_unix_connection(channel.address)
            got = asyncio.create_task(reader.read(-1))
            await _write(writer, here)
            writer.write_eof()
            async with asyncio.timeout(60):
                assert hashlib.sha256(await got).digest() == hashlib.sha256(there).digest()
            assert await seen == hashlib.sha256(here).hexdigest()
            writer.close()
        assert not folder.exists()


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def test_http_and_the_read_only_socket(
    server: Server, workdir: Path, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # must not be asked
    async with (
        Link(server.endpoint) as link,
        socket_server(workdir, answers(b"all")),
        socket_server(workdir, answers(b"only read"), read_only=True),
    ):
        await link.connected(20)
        for read_only, text in ((False, "all"), (True, "only read")):
            bridge = bridge_argv(str(workdir), sys.executable, release, read_only=read_only)
            async with AgentChannel(link, bridge) as channel, channel.http() as client:
                assert (await client.get("/v1/state")).text == text


async def test_more_requests_than_sessions(server: Server, workdir: Path, release: str) -> None:
    async with Link(server.endpoint) as link, socket_server(workdir, answers(b"yes")):
        await link.connected(20)
        bridge = bridge_argv(str(workdir), sys.executable, release)
        async with AgentChannel(link, bridge) as channel, channel.http() as client:
            replies = await asyncio.gather(*(client.get("/v1/state") for _ in range(3 * SESSIONS)))
            assert {reply.text for reply in replies} == {"yes"}


async def test_an_agent_that_hangs_costs_no_session_for_ever(
    server: Server, workdir: Path, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_room, "LINGER_S", 0.5)
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read(1)
            asked.set()
            await asyncio.Event().wait()

    async with Link(server.endpoint) as link, socket_server(workdir, hang):
        await link.connected(20)
        async with AgentChannel(link, bridge_argv(str(workdir), sys.executable, release)) as channel:
            callers = [await asyncio.open_unix_connection(channel.address) for _ in range(SESSIONS)]
            for _, writer in callers:
                writer.write(b"GET")
            await asyncio.wait_for(asked.wait(), 10)
            for _, writer in callers:
                writer.close()
            assert (await asyncio.wait_for(link.run(["echo", "free"]), 15)).stdout == b"free\n"


async def test_the_bridge_says_why_it_failed(server: Server, workdir: Path, release: str) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        cases = {
            "no agent at": bridge_argv(str(workdir), sys.executable, release),
            "No such file or directory": bridge_argv(str(workdir), sys.executable, "0" * 16),
            "not found|No such file": bridge_argv(str(workdir), "/no/such/python", release),
        }
        for text, bridge in cases.items():
            async with AgentChannel(link, bridge) as channel, channel.http() as client:
                reply = await client.get("/v1/state")
                assert reply.status_code == 502
                assert reply.headers[LINK_HEADER] == "down"
                assert any(part in reply.json()["error"] for part in text.split("|"))
                assert channel.failure_since(0) == reply.json()["error"]


async def test_without_a_link_the_request_is_answered_at_once(own_server: Server) -> None:
    async with Link(own_server.endpoint) as link:
        await link.connected(20)
        async with AgentChannel(link, ("true",)) as channel, channel.http() as client:
            own_server.kill()
            async with asyncio.timeout(20):
                async for status in link.changes():
                    if status.state == "lost":
                        break
            reply = await client.get("/v1/state")
            assert reply.status_code == 502
            assert "127.0.0.1" in reply.json()["error"]


@pytest.mark.parametrize("ticks", range(8))
def test_calls_that_are_cancelled_at_any_moment_are_no_errors(ticks: int) -> None:
    told: list[object] = []
    channel = AgentChannel(Link(Endpoint("127.0.0.1")), ("true",))

    async def end_in_the_middle() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        await channel.__aenter__()
        for _ in range(3):
            await asyncio.open_unix_connection(channel.address)
        for _ in range(ticks):
            await asyncio.sleep(0)

    asyncio.run(end_in_the_middle())
    shutil.rmtree(Path(channel.address).parent)
    assert told == []
