"""The link: one connection kept alive and made again for as long as the console runs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shlex
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import asyncssh

from console import clock
from console.link.connect import Connection, Endpoint, open_connection
from console.link.errors import LinkDown, LinkRefused, SessionRefused, one_line
from console.link.hostkeys import ANY_NEW_KEY
from console.link.sessions import Sessions

LARGE = 1 << 20
"""Input of more bytes than this travels over a connection of its own, so that the panes never wait behind it."""

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 15.0
SETTLED_S = 10.0  # a connection that lived so long counts as a success
REFUSED_S = 5.0  # how long a command that is refused a session tries again: one that has just ended may still count


@dataclass(frozen=True)
class LinkStatus:
    """Where the link stands. ``host_key`` is a fingerprint the operator may accept, see ``Link.retry``."""

    state: Literal["connecting", "live", "lost", "refused"]
    since: float  # when it was entered, on console.clock
    detail: str = ""
    host_key: str = ""


@dataclass(frozen=True)
class Completed:
    """A remote command that ended. ``code`` is negative for a signal."""

    code: int
    stdout: bytes
    stderr: bytes


def delay(attempt: int, jitter: float) -> float:
    """Seconds before trying again after ``attempt`` failures in a row (from 0); ``jitter`` is in 0…1."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt, 16)) * (0.5 + 0.5 * jitter)


class Link:
    """Use as an async context manager. Connects in the background and never gives up on network errors."""

    def __init__(self, endpoint: Endpoint, *, accept_new_host_key: bool = False) -> None:
        self.endpoint = endpoint
        self._accept = ANY_NEW_KEY if accept_new_host_key else ""
        self._status = LinkStatus("connecting", clock.now())
        self._watchers: set[asyncio.Queue[LinkStatus]] = set()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._retry = asyncio.Event()
        self.sessions = Sessions()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._task = None

    @property
    def status(self) -> LinkStatus:
        return self._status

    async def changes(self) -> AsyncGenerator[LinkStatus, None]:
        """The present status, then each change. A reader that falls far behind misses the oldest ones."""
        queue: asyncio.Queue[LinkStatus] = asyncio.Queue(maxsize=256)
        queue.put_nowait(self._status)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def connected(self, timeout_s: float | None = None) -> None:
        """Return when the link is live. Raises ``LinkRefused`` when it is refused, ``LinkDown`` after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                async with contextlib.aclosing(self.changes()) as changes:
                    async for status in changes:
                        if status.state == "live":
                            return
                        if status.state == "refused":
                            raise LinkRefused(status.detail, status.host_key)
        except TimeoutError:
            raise LinkDown(self._status.detail or f"no connection to {self.endpoint.host} yet") from None

    def retry(self, accept_host_key: str = "") -> None:
        """Try again now. ``accept_host_key``: the fingerprint from ``status.host_key``, if the operator accepts it."""
        self._accept = accept_host_key or self._accept
        self._retry.set()

    async def run(self, argv: Sequence[str], data: bytes = b"", *, timeout_s: float = 60.0) -> Completed:
        """Run a command to its end with ``data`` on its standard input. Raises ``LinkDown`` if the wire fails."""
        if len(data) <= LARGE:
            return await self._run_on(self.require_live(), argv, data, timeout_s)
        self.require_live()
        own = await open_connection(self.endpoint)
        try:
            return await self._run_on(own.ssh, argv, data, timeout_s)
        finally:
            await own.close()

    @contextlib.asynccontextmanager
    async def session(self, argv: Sequence[str]) -> AsyncIterator[asyncssh.SSHClientProcess[bytes]]:
        """A running remote command with byte streams, closed at the end; waits while there are too many.

        Raises ``SessionRefused`` where the server opens none, and then has fewer places for the next.
        """
        async with self.sessions.open.place():
            try:
                process = await _start(self.require_live(), argv)
            except SessionRefused:
                self.sessions.refused()
                raise
            try:
                yield process
            finally:
                process.close()

    async def _run_on(
        self, ssh: asyncssh.SSHClientConnection, argv: Sequence[str], data: bytes, timeout_s: float
    ) -> Completed:
        async with self.sessions.open.place():
            process = await _start_patiently(ssh, argv)
            try:
                async with asyncio.timeout(timeout_s):
                    with contextlib.suppress(BrokenPipeError):  # a command may end before it has read its input
                        process.stdin.write(data)
                        process.stdin.write_eof()
                    stdout, stderr = await process.communicate()
                    await process.wait_closed()
            except TimeoutError:
                raise LinkDown(f"{argv[0]} on {self.endpoint.host} did not end within {timeout_s:.0f} s") from None
            except (asyncssh.Error, OSError) as error:
                raise LinkDown(f"the connection broke while {argv[0]} ran: {one_line(str(error))}") from None
            finally:
                process.close()
        code = process.returncode
        if code is None:
            broke = "the connection broke" if ssh.is_closed() else "the SSH server ended the session"
            raise LinkDown(f"{broke} while {argv[0]} ran")
        return Completed(code, bytes(stdout or b""), bytes(stderr or b""))

    def require_live(self) -> asyncssh.SSHClientConnection:
        """The connection. Raises ``LinkDown`` with what the status says where there is none."""
        if self._connection is None:
            raise LinkDown(self._status.detail or f"no connection to {self.endpoint.host} yet")
        return self._connection

    def _set(self, status: LinkStatus) -> None:
        same = (status.state, status.detail, status.host_key) == (
            self._status.state,
            self._status.detail,
            self._status.host_key,
        )
        if same:
            return
        self._status = status
        for queue in self._watchers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(status)

    async def _keep(self) -> None:
        failures = 0
        while True:
            self._retry.clear()
            try:
                connection = await self._open()
            except LinkRefused as refused:
                self._set(LinkStatus("refused", clock.now(), str(refused), refused.fingerprint))
                await self._retry.wait()
                self._set(LinkStatus("connecting", clock.now()))
                failures = 0
                continue
            except LinkDown as down:
                since = self._status.since if self._status.state == "lost" else clock.now()
                self._set(LinkStatus("lost", since, str(down)))
            else:
                lived = await self._hold(connection)
                failures = 0 if lived > SETTLED_S else failures
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._retry.wait(), delay(failures, random.random()))  # noqa: S311
            failures += 1

    async def _open(self) -> Connection:
        """A new connection. Who asks to try now does not wait for a try that began when the network was still gone."""
        opening = asyncio.create_task(open_connection(self.endpoint, self._accept))
        asked = asyncio.create_task(self._retry.wait())
        try:
            await asyncio.wait({opening, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise LinkDown("connecting again, as asked")
            return opening.result()
        finally:
            for task in (opening, asked):
                task.cancel()
            await asyncio.gather(opening, asked, return_exceptions=True)

    async def _hold(self, connection: Connection) -> float:
        """Be live until the connection ends; return how many seconds that was."""
        start = time.monotonic()
        self._connection = connection.ssh
        self.sessions.anew()
        self._set(LinkStatus("live", clock.now()))
        reason = "closed"
        try:
            reason = await asyncio.shield(connection.lost)
        finally:
            self._connection = None
            self._set(LinkStatus("lost", clock.now(), f"lost {self.endpoint.host}: {reason}"))
            await connection.close()
        return time.monotonic() - start


async def _start(ssh: asyncssh.SSHClientConnection, argv: Sequence[str]) -> asyncssh.SSHClientProcess[bytes]:
    try:
        return await ssh.create_process(shlex.join(argv), encoding=None, request_pty=False)
    except asyncssh.ChannelOpenError as error:
        raise SessionRefused(
            f"the SSH server opened no further session ({one_line(str(error))}): it needs MaxSessions 2 or more"
        ) from None
    except (asyncssh.Error, OSError) as error:
        raise LinkDown(f"the connection broke: {one_line(str(error))}") from None


async def _start_patiently(ssh: asyncssh.SSHClientConnection, argv: Sequence[str]) -> asyncssh.SSHClientProcess[bytes]:
    deadline = time.monotonic() + REFUSED_S
    while True:
        try:
            return await _start(ssh, argv)
        except SessionRefused:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
