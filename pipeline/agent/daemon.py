"""The agent process: one for each work directory, served on two UNIX sockets, together with its keeper."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from pipeline.agent import locks, own_log, paths, succession
from pipeline.agent.api import Api, Control
from pipeline.agent.attempts.identity import identify, send
from pipeline.agent.attempts.run import gone
from pipeline.agent.doors import Doors
from pipeline.agent.launch import spawn_keeper
from pipeline.agent.loop_thread import LoopThread
from pipeline.agent.supervisor import Supervisor
from pipeline.protocol import AgentInfo

KEEPER_LOOK_S: Final = 0.1
KEEPER_GAP_S: Final = 1.0
"""A keeper that died sooner after its start is not started again at once."""

LEAVE_S: Final = 0.2
"""Time for the answer to reach whoever asked the agent to leave."""

CLOSE_S: Final = 5.0
"""How long the end of the agent waits for the disk."""

SOCKETS: Final = {"agent.sock": False, "read.sock": True}
"""Their names, and whether they can only be read from."""

log = logging.getLogger(__name__)


class Agent:
    """Everything that lives as long as the agent does."""

    def __init__(self, workdir: Path, runtime: Path, lock: int) -> None:
        self.workdir = workdir
        self.runtime = runtime
        self.doors = Doors(runtime, lock)
        self.works = LoopThread("supervisor")
        self.supervisor: Supervisor
        self.started_at = time.time()
        self.release = Path(paths.own_root()).name
        self._loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        self._with_keeper = False

    def info(self) -> AgentInfo:
        keeper = locks.holder(str(self.runtime / "keeper.lock")) is not None
        return AgentInfo(
            os.getpid(), self.started_at, self.release, str(self.workdir), self.supervisor.container, keeper,
            journal=self.supervisor.board.store.identity,
        )  # fmt: skip

    def leave(self, with_keeper: bool = False) -> None:
        """End the agent soon; jobs go on. From any thread."""
        self._with_keeper = with_keeper
        self._loop.call_soon_threadsafe(self._loop.call_later, LEAVE_S, self._leaving.set)

    async def run(self) -> None:
        """Serve until told to leave."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._leaving.set)
        self.supervisor = await self.works.call(_supervise(self.workdir, self.release))
        api = Api(self.supervisor, self.works, Control(self.info, self.leave))
        self.doors.open({name: api.app(read_only=read_only) for name, read_only in SOCKETS.items()})
        tell = partial(self.works.soon, self.supervisor.board.note, "agent")
        works = (self._keep_keeper(tell), self.doors.keep(tell), self._keep_log())
        keeping = [asyncio.create_task(work) for work in works]
        await self._leaving.wait()
        for task in keeping:
            task.cancel()
        if self._with_keeper:
            keeper = locks.holder(str(self.runtime / "keeper.lock"))
            if keeper is not None:
                send(keeper, signal.SIGTERM)
        self.supervisor.board.close_streams()
        await asyncio.gather(*keeping, return_exceptions=True)
        await self.doors.close()
        try:
            await asyncio.wait_for(self.works.call(self._close()), CLOSE_S)
        except TimeoutError:
            log.warning("the disk does not answer; leaving all the same, the next agent reads it from there")

    async def _close(self) -> None:
        try:
            succession.leave(self.supervisor.board)
        finally:
            await self.supervisor.close()

    async def _keep_log(self) -> None:
        """Keep the agent's own log within its cap."""
        while True:
            with suppress(OSError):  # a full disk: what is written is lost then, and it is tried again
                own_log.keep(str(self.runtime / "agent.log"))
            await asyncio.sleep(own_log.LOOK_S)

    async def _keep_keeper(self, tell: Callable[[str], None]) -> None:
        """Start the keeper again whenever it has died; say so, for meanwhile nobody would start the agent again."""
        lock = str(self.runtime / "keeper.lock")
        loop = asyncio.get_running_loop()
        root, missed = "", False
        while True:
            try:
                keeper = locks.holder(lock)
                if keeper is not None:
                    if missed:
                        tell(f"keeper {keeper.pid} is there")
                        missed = False
                    await gone(keeper)
                    tell(f"keeper {keeper.pid} has ended; another one is being started")
                    missed = True
                    continue
                began = loop.time()
                child = identify(spawn_keeper(self.workdir, self.runtime, root))
            except OSError as error:  # no processes or files left, or no disk
                log.warning("the keeper cannot be started, trying again: %s", error)
                await asyncio.sleep(KEEPER_GAP_S)
                continue
            deadline = began + KEEPER_GAP_S
            while locks.holder(lock) is None and loop.time() < deadline:  # noqa: ASYNC110 - the keeper takes it
                await asyncio.sleep(KEEPER_LOOK_S)
            keeper = locks.holder(lock)
            if child is not None and child != keeper:
                await gone(child)  # another was faster, or it failed
            if keeper is None:
                log.warning("the keeper does not stay; see keeper.log")
                root = "" if root else paths.own_root()  # the current release may be broken
                await asyncio.sleep(KEEPER_GAP_S)


async def _supervise(workdir: Path, release: str) -> Supervisor:
    supervisor = Supervisor(workdir)
    await supervisor.start()
    succession.arrive(supervisor.board, os.getpid(), release, supervisor.container)
    return supervisor


def main(workdir: Path, runtime: Path, lock: int) -> int:
    """Run the agent; ``lock`` is what ``locks.take`` gave for its lock file."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)

    async def live() -> None:
        await Agent(workdir, runtime, lock).run()
        # The interpreter would wait for every thread, and one may hang in a login shell or in a dead mount.
        logging.shutdown()
        os._exit(0)

    asyncio.run(live())
    return 0
