"""The agent process: one for each work directory, served on two UNIX sockets, together with its keeper."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import uvicorn

from pipeline.agent import locks, paths
from pipeline.agent.api import Api, Control
from pipeline.agent.identity import identify, send
from pipeline.agent.launch import spawn_keeper
from pipeline.agent.run import gone
from pipeline.agent.supervisor import Supervisor
from pipeline.protocol import AgentInfo

KEEPER_LOOK_S: Final = 0.1
KEEPER_GAP_S: Final = 1.0
"""A keeper that died sooner after its start is not started again at once."""

LEAVE_S: Final = 0.2
"""Time for the answer to reach whoever asked the agent to leave."""

SOCKETS: Final = {"agent.sock": False, "read.sock": True}
"""Their names, and whether they can only be read from."""

log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Leaves signals to the agent."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Agent:
    """Everything that lives as long as the agent does."""

    def __init__(self, workdir: Path, runtime: Path) -> None:
        self.workdir = workdir
        self.runtime = runtime
        self.supervisor = Supervisor(workdir)
        self.started_at = time.time()
        self.release = Path(paths.own_root()).name
        self._leaving = asyncio.Event()
        self._with_keeper = False

    def info(self) -> AgentInfo:
        keeper = locks.holder(str(self.runtime / "keeper.lock")) is not None
        return AgentInfo(
            os.getpid(), self.started_at, self.release, str(self.workdir), self.supervisor.container, keeper
        )  # fmt: skip

    def leave(self, with_keeper: bool = False) -> None:
        """End the agent soon; jobs go on."""
        self._with_keeper = with_keeper
        asyncio.get_running_loop().call_later(LEAVE_S, self._leaving.set)

    async def run(self) -> None:
        """Serve until told to leave."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leaving.set)
        await self.supervisor.start()
        api = Api(self.supervisor, Control(self.info, self.leave))
        servers, serving = [], []
        for name, read_only in SOCKETS.items():
            config = uvicorn.Config(
                api.app(read_only=read_only), lifespan="off", log_config=None, access_log=False, http="h11",
                ws="none", timeout_keep_alive=600, timeout_graceful_shutdown=1, server_header=False,
            )  # fmt: skip
            server = _Server(config)
            servers.append(server)
            serving.append(asyncio.create_task(server.serve(sockets=[_listen(self.runtime / name)])))
        keeping = asyncio.create_task(self._keep_keeper())
        self.supervisor.board.tell("agent", f"agent {os.getpid()} of release {self.release} is there")
        await self._leaving.wait()
        keeping.cancel()
        if self._with_keeper:
            keeper = locks.holder(str(self.runtime / "keeper.lock"))
            if keeper is not None:
                send(keeper, signal.SIGTERM)
        self.supervisor.board.close_streams()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, keeping, return_exceptions=True)
        await self.supervisor.close()
        for name in SOCKETS:
            (self.runtime / name).unlink(missing_ok=True)  # the lock is still ours

    async def _keep_keeper(self) -> None:
        """Start the keeper again whenever it has died."""
        lock = str(self.runtime / "keeper.lock")
        loop = asyncio.get_running_loop()
        while True:
            keeper = locks.holder(lock)
            if keeper is not None:
                await gone(keeper)
                continue
            began = loop.time()
            child = identify(spawn_keeper(self.workdir, self.runtime))
            deadline = began + KEEPER_GAP_S
            while locks.holder(lock) is None and loop.time() < deadline:  # noqa: ASYNC110 - the keeper takes it
                await asyncio.sleep(KEEPER_LOOK_S)
            keeper = locks.holder(lock)
            if keeper is not None and child is not None and child != keeper:
                await gone(child)  # another was faster; the one from here ends by itself
            elif keeper is None:
                log.warning("the keeper does not stay; see keeper.log")
                await asyncio.sleep(KEEPER_GAP_S)


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


def main(workdir: Path, runtime: Path) -> int:
    """Run the agent; whoever calls holds the lock."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)

    async def live() -> None:
        await Agent(workdir, runtime).run()
        # The interpreter would wait for every thread, and one may hang in a login shell or in a dead mount.
        logging.shutdown()
        os._exit(0)

    asyncio.run(live())
    return 0
