"""HTTP to the agent: a local UNIX socket, each connection of which is a bridge process in a session of the link.

The bridge (``pipeline/agent/bridge.py``) joins its standard input and output to the agent's socket in the container.
Where it cannot be started or ends before it gave an answer, this side answers the HTTP request itself, with status 502,
the header ``LINK_HEADER`` and the reason; so the reason reaches exactly the caller it concerns. What a login shell's
start-up files print in front of the answer is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import Self

import asyncssh
import httpx

from console.link.errors import LinkDown, SessionRefused, last_line, one_line
from console.link.reconnect import Link
from console.link.sessions import SESSIONS

LINK_HEADER = "x-draftdeck-link"
DOWN, REFUSED = "down", "refused"  # values of that header; refused: nothing was sent, another session may serve it
LINGER_S = 5.0  # how long a silent answer is waited for after the local side has closed
ANSWER = b"HTTP/1.1 "  # what the agent's answer begins with
NOISE_LIMIT = 1 << 20  # bytes in front of it
_CHUNK = 65536
_LONGEST_TEMPORARY_FOLDER = 80  # a socket's whole path has at most 103 bytes on macOS, 107 on Linux


def bridge_argv(workdir: str, python: str, release: str, *, read_only: bool = False) -> tuple[str, ...]:
    """The remote command that joins its standard input and output to the agent's socket."""
    script = f"{workdir}/releases/{release}/pipeline/agent/bridge.py"
    argv = (python, "-I", "-S", script, "--workdir", workdir)
    return (*argv, "--read-only") if read_only else argv


class AgentChannel:
    """Use as an async context manager; ``address`` is then the path of the socket, in a folder only we can enter."""

    def __init__(self, link: Link, bridge: Sequence[str]) -> None:
        self._link = link
        self._bridge = tuple(bridge)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = (float("-inf"), "")
        self.address = ""

    async def __aenter__(self) -> Self:
        place = tempfile.gettempdir()
        if len(place) > _LONGEST_TEMPORARY_FOLDER:
            place = "/tmp"  # noqa: S108 - what is made in it is private
        self._folder = tempfile.mkdtemp(prefix="draftdeck-", dir=place)
        self.address = f"{self._folder}/s"
        self._server = await asyncio.start_unix_server(self._accept, self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def http(self) -> httpx.AsyncClient:
        """A client whose every request goes to the agent; one session of the link is left to other commands.

        One idle connection stays open, so that a key press waits for no bridge to start.
        """
        limits = httpx.Limits(max_connections=SESSIONS - 1, max_keepalive_connections=1, keepalive_expiry=None)
        transport = httpx.AsyncHTTPTransport(uds=self.address, limits=limits)
        timeout = httpx.Timeout(30.0, connect=10.0)
        # The environment's proxies are for the network, not for this socket.
        return httpx.AsyncClient(transport=transport, base_url="http://agent", timeout=timeout, trust_env=False)

    def failure_since(self, moment: float) -> str:
        """Why a bridge last failed, if it did after ``moment`` (``time.monotonic()``); else nothing."""
        at, text = self._failed
        return text if at >= moment else ""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: Python 3.11's stream server reports the cancelling of one that it made as an error.
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verdict = DOWN
        try:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    process = await stack.enter_async_context(self._link.session(self._bridge))
                    answered, failure = await _join(process, reader, writer)
                except LinkDown as down:
                    answered, failure = 0, str(down)
                    verdict = REFUSED if isinstance(down, SessionRefused) else DOWN
                if failure:
                    self._failed = (time.monotonic(), failure)
                    if not answered:
                        await _answer(reader, writer, verdict, failure)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _join(
    process: asyncssh.SSHClientProcess[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[int, str]:
    """Carry bytes both ways until the bridge ends. Returns how many came back, and what went wrong if anything did."""
    carried = _Carried()
    up = asyncio.create_task(_carry_up(reader, process))
    down = asyncio.create_task(_carry_down(process, writer, carried))
    said = asyncio.create_task(_error_output(process))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        while not down.done():
            before = carried.back
            await asyncio.wait({down}, timeout=LINGER_S)
            if not down.done() and carried.back == before:  # nothing more comes
                return carried.back, "" if up.result() else "the bridge takes nothing any more"
        broken = down.result()
        if not broken:
            await process.wait_closed()
        if not broken and process.exit_status == 0 and (carried.back or (up.done() and up.result())):
            return carried.back, ""
        if not broken and process.exit_status == 0:
            broken = f"the login shell ended the session: {last_line(carried.noise) or 'without a word'}"
        if not broken and process.returncode is None:
            broken = "the connection broke"
        return carried.back, broken or last_line(await said) or f"the bridge ended with code {process.returncode}"
    finally:
        for task in (up, down, said):
            task.cancel()
        await asyncio.gather(up, down, said, return_exceptions=True)


class _Carried:
    """What came back so far: bytes of the answer, and what stood in front of it."""

    back = 0
    noise = b""

    def answer(self, data: bytes) -> bytes:
        """The part of ``data`` that belongs to the answer."""
        if not self.back:
            self.noise += data
            at = self.noise.find(ANSWER)
            self.noise, data = (self.noise, b"") if at < 0 else (self.noise[:at], self.noise[at:])
        self.back += len(data)
        return data


async def _carry_up(reader: asyncio.StreamReader, process: asyncssh.SSHClientProcess[bytes]) -> bool:
    """Returns whether our own side has gone; a failure of the other one shows in what comes back, with its reason."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            try:
                process.stdin.write(data)
                await process.stdin.drain()
            except (asyncssh.Error, OSError):
                return False
    with contextlib.suppress(asyncssh.Error, OSError):
        process.stdin.write_eof()
    return True


async def _carry_down(
    process: asyncssh.SSHClientProcess[bytes], writer: asyncio.StreamWriter, carried: _Carried
) -> str:
    """Returns how the wire broke, or nothing after a regular end (also where our own side has gone)."""
    try:
        while data := await process.stdout.read(_CHUNK):
            data = carried.answer(data)
            if len(carried.noise) > NOISE_LIMIT:
                return f"the login shell prints without end: {one_line(carried.noise[:200], 80)}"
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                return ""
    except (asyncssh.Error, OSError) as error:
        return f"the connection broke: {one_line(str(error))}"
    return ""


async def _error_output(process: asyncssh.SSHClientProcess[bytes]) -> bytes:
    """The newest part of what the bridge wrote to standard error."""
    kept = b""
    with contextlib.suppress(asyncssh.Error, OSError):
        while data := await process.stderr.read(_CHUNK):
            kept = (kept + data)[-8192:]
    return kept


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, verdict: str, text: str) -> None:
    """Answer the HTTP request in the agent's place."""
    body = json.dumps({"error": text}).encode()
    head = f"HTTP/1.1 502 Bad Gateway\r\n{LINK_HEADER}: {verdict}\r\nContent-Type: application/json\r\n"
    try:
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.write_eof()
        # Unread bytes at closing would reset the connection and could take the answer with them.
        async with asyncio.timeout(1.0):
            while await reader.read(_CHUNK):
                pass
    except (OSError, TimeoutError, RuntimeError):
        return
