"""The real program on a pseudo terminal, following a real agent through OpenSSH and a relay."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from console.client import AgentClient
from console.demo_config import SOURCES, demo_config
from console.link.channel import bridge_argv
from console.link.connect import Endpoint
from console.link.deploy import deploy, ensure_agent
from console.link.reconnect import Link
from pipeline.protocol import ApplyRequest, JobSpec, Plan, RestartPolicy
from tests.agent.rig import until
from tests.link.relay import Relay
from tests.pseudo_terminal import Terminal, on_terminal

SCRIPT = 'echo $$ >> "{folder}/{name}.starts"; exec sleep 100000'


class OwnLoop:
    """A relay on an event loop of its own, so that what waits or measures here does not hold it up."""

    def __init__(self, relay: Relay, loop: asyncio.AbstractEventLoop) -> None:
        self.relay = relay
        self._loop = loop

    def tell(self, what: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(what)

    def break_off(self) -> None:
        asyncio.run_coroutine_threadsafe(self.relay.break_off(), self._loop).result()


@contextlib.contextmanager
def relayed(port: int, one_way_s: float) -> Iterator[OwnLoop]:
    """A relay to ``port`` that runs beside the caller."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    relay = Relay(port, one_way_s=one_way_s)
    asyncio.run_coroutine_threadsafe(relay.__aenter__(), loop).result()
    try:
        yield OwnLoop(relay, loop)
    finally:
        asyncio.run_coroutine_threadsafe(relay.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def starts(folder: Path, name: str) -> list[int]:
    """The pids of a job's processes so far, the newest last."""
    path = folder / f"{name}.starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def prepare(endpoint: Endpoint, folder: Path, names: Sequence[str]) -> None:
    """An agent for ``folder / "work"`` with these jobs running, none of which starts again by itself."""
    workdir, never = str(folder / "work"), RestartPolicy(when="never")
    async with Link(endpoint) as link:
        await link.connected(20)
        release = await deploy(link, workdir, sys.executable)
        await ensure_agent(link, workdir, sys.executable, release, by="test")
        jobs = tuple(
            JobSpec(name, "demo", ("/bin/sh", "-c", SCRIPT.format(folder=folder, name=name)), restart=never)
            for name in names
        )
        async with AgentClient(link, bridge_argv(workdir, sys.executable, release)) as agent:
            reply = await agent.apply(ApplyRequest(Plan("test", release, jobs), by="test"))
            assert reply.applied, reply.refused
            await until(lambda: all(starts(folder, name) for name in names), within=60)


@contextlib.contextmanager
def console(endpoint: Endpoint, folder: Path, *, columns: int = 140, lines: int = 50) -> Iterator[Terminal]:
    """``draftdeck`` on the work directory ``folder / "work"``."""
    config = folder / "config.toml"
    config.write_text(
        demo_config(
            port=endpoint.port or 22, user=endpoint.user or "", key=str(endpoint.identity_files[0]),
            known_hosts=str(endpoint.known_hosts), workdir=str(folder / "work"), python=sys.executable,
            model_dir="/no/model", sources={name: f"/no/{name}" for name in SOURCES}, size=1, server_port=1,
        )
    )  # fmt: skip
    with on_terminal(
        (sys.executable, "-m", "console.cli", "--config", str(config)), columns=columns, lines=lines
    ) as it:
        yield it
