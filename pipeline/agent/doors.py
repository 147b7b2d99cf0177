"""What the agent is found by: its lock file and two sockets in the runtime directory, made again when they are gone.

Cleaners of /tmp remove files that look old, and operators remove what looks stale. The agent goes on all the same:
what decides that there is only one is held elsewhere, see ``locks.guard``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.agent import locks, paths
from pipeline.agent.stream import ABORT

LOOK_S: Final = 2.0

log = logging.getLogger(__name__)


class Doors:
    """Serves one application on each socket, and holds the lock file, until ``close``."""

    def __init__(self, runtime: Path, lock: int) -> None:
        self._runtime, self._lock = runtime, lock
        self._apps: dict[str, ASGIApp] = {}
        self._open: dict[str, tuple[int, int]] = {}  # by socket: device and inode of its path
        self._serving: dict[str, _Server] = {}
        self._servers: list[_Server] = []
        self._tasks: list[asyncio.Task[None]] = []

    def open(self, apps: Mapping[str, ASGIApp]) -> None:
        """Serve each application on the socket of its name."""
        self._apps = dict(apps)
        for name in self._apps:
            self._serve(name)

    async def keep(self, tell: Callable[[str], None]) -> None:
        """Look every two seconds whether all is in its place; never returns."""
        said = ""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                made = self.mend()
            except (OSError, paths.UnsafeFolderError) as error:
                if str(error) != said:
                    log.warning("the sockets cannot be kept: %s", error)
                    tell(f"no console can reach the agent: {error}")
                said = str(error)
                continue
            said = ""
            if made:
                tell(f"{', '.join(made)} had been removed from {self._runtime}: made again")

    def mend(self) -> list[str]:
        """Make again what is gone or belongs to somebody else; the names of what was."""
        paths.make_private(str(self._runtime))  # the work directory is not asked where that is: it may hang
        gone = [name for name in self._apps if _inode(self._runtime / name) != self._open[name]]
        for name in gone:
            self._serve(name)
        lock = str(self._runtime / "agent.lock")
        if not locks.holds(self._lock, lock):
            found = locks.take(lock)
            if found is None:
                raise OSError(f"{lock} is held by somebody else")
            os.close(self._lock)
            self._lock = found
            gone.append("agent.lock")
        return gone

    async def close(self) -> None:
        """Take no more requests, end the open ones, and remove the sockets."""
        for server in self._servers:
            server.should_exit = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name, inode in self._open.items():
            if _inode(self._runtime / name) == inode:
                (self._runtime / name).unlink()

    def _serve(self, name: str) -> None:
        listener = _listen(self._runtime / name)
        found = _inode(self._runtime / name)
        assert found is not None
        self._open[name] = found
        if name in self._serving:
            self._serving[name].stop_listening()  # whoever has a connection keeps it
        config = uvicorn.Config(
            self._apps[name], lifespan="off", log_config=None, access_log=False, http=_Http,
            ws="none", timeout_keep_alive=600, timeout_graceful_shutdown=1, server_header=False,
        )  # fmt: skip
        server = self._serving[name] = _Server(config)
        self._servers.append(server)
        self._tasks.append(asyncio.create_task(server.serve(sockets=[listener])))


class _Server(uvicorn.Server):
    """Leaves signals to the agent."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_listening(self) -> None:
        for server in self.servers:
            server.close()


class _Http(H11Protocol):
    """Lets the application cut off a reader that takes nothing: closing would wait for it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app: Any = partial(_with_abort, self.app, transport)


async def _with_abort(app: Any, transport: asyncio.Transport, scope: Scope, receive: Receive, send: Send) -> None:
    await app({**scope, ABORT: transport.abort}, receive, send)


def _listen(path: Path) -> socket.socket:
    """A listening socket of mode 0600. A path left by a dead agent is taken over: the lock is ours."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(128)
    return listener


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
