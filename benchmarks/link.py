"""The console over a slow wire: a real OpenSSH server behind a relay that takes 25 ms each way, the real program.

How long from a job's death until the terminal shows it, and from the key ``r`` until the job's new process runs; beside
it, in the same run over the same wire, what a command of plain ``ssh`` takes on a connection of its own and on one that
is open already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console.client import AgentClient
from console.demo_config import SOURCES, demo_config
from console.link.channel import bridge_argv
from console.link.connect import Endpoint
from console.link.deploy import deploy, ensure_agent
from console.link.reconnect import Link
from pipeline.agent import paths
from pipeline.protocol import ApplyRequest, JobSpec, Plan, RestartPolicy
from tests.agent.rig import until
from tests.link.conftest import through
from tests.link.relay import Relay
from tests.pseudo_terminal import Terminal, on_terminal
from tests.sshd import OpenSshServer

ONE_WAY_S: Final = 0.025
ROUNDS: Final = 36
QUICK_ROUNDS: Final = 8
SCRIPT: Final = 'echo $$ >> "{folder}/{name}.starts"; exec sleep 100000'
PEER_ROUNDS: Final = 20


@dataclass(frozen=True)
class Times:
    """Milliseconds."""

    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, took: Sequence[float]) -> Times:
        cuts = statistics.quantiles(took, n=20, method="inclusive")
        return cls(round(cuts[9], 1), round(cuts[18], 1), round(max(took), 1))

    def row(self, name: str) -> str:
        return f"| {name} | {self.p50:.0f} ms | {self.p95:.0f} ms | {self.max:.0f} ms |"


def measure(quick: bool = False) -> dict[str, Any]:
    """Run all, print the table, and return the figures."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        server = OpenSshServer(folder / "sshd")
        server.start()
        stack.callback(server.kill)
        relay = stack.enter_context(relayed(server))
        console, keys = rounds_of_console(server, relay, folder, rounds)
        own, shared = peer(through(relay, server), folder)
    times = {
        "job SIGKILLed → on the screen": console,
        "key r → new process runs": keys,
        "ssh host true, new connection": own,
        "ssh host true, open connection": shared,
    }
    print(f"| {2 * ONE_WAY_S * 1000:.0f} ms round trip | p50 | p95 | max |\n| --- | --- | --- | --- |")
    for name, each in times.items():
        print(each.row(name))
    ratio = round(keys.p50 / shared.p50, 2)
    print(f"key r to running takes {ratio} times a command on an open ssh connection")
    return {
        "round_trip_ms": 2 * ONE_WAY_S * 1000,
        "rounds": rounds,
        "times_ms": {name: vars(each) for name, each in times.items()},
        "restart_against_open_ssh": ratio,
    }


@contextlib.contextmanager
def relayed(server: OpenSshServer) -> Iterator[Relay]:
    """The relay on an event loop of its own, so that what measures does not hold it up."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    relay = Relay(server.port, one_way_s=ONE_WAY_S)
    asyncio.run_coroutine_threadsafe(relay.__aenter__(), loop).result()
    try:
        yield relay
    finally:
        asyncio.run_coroutine_threadsafe(relay.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def rounds_of_console(server: OpenSshServer, relay: Relay, folder: Path, rounds: int) -> tuple[Times, Times]:
    """How long deaths take to the screen, and restarts from the key; a job a round."""
    names = [f"bench:{number:02}" for number in range(rounds)]
    workdir = folder / "work"
    workdir.mkdir()
    asyncio.run(prepare(server.endpoint, workdir, folder, names))
    try:
        argv = (sys.executable, "-m", "console.cli", "--config", str(write_config(relay, server, folder)))
        with on_terminal(argv, columns=140, lines=50) as terminal:
            terminal.read_until(names[-1], 60)
            deaths, restarts = [], []
            for name in names:
                terminal.drain(random.uniform(0.5, 1.5))
                deaths.append(until_shown(terminal, folder, name))
                terminal.write(b"n")
                terminal.read_until(f"{name} failed ·", since=len(terminal.seen))
                terminal.drain(random.uniform(0.3, 1.0))
                restarts.append(until_running(terminal, folder, name))
            return Times.of(deaths), Times.of(restarts)
    finally:
        end(workdir)


def until_shown(terminal: Terminal, folder: Path, name: str) -> float:
    """Milliseconds from the SIGKILL to the bytes on the terminal that name it."""
    mark = len(terminal.seen)
    began = time.monotonic()
    os.kill(starts(folder, name)[-1], signal.SIGKILL)
    terminal.read_until(f"{name} failed:", since=mark)
    return (time.monotonic() - began) * 1000


def until_running(terminal: Terminal, folder: Path, name: str) -> float:
    """Milliseconds from the key to the new process."""
    before = len(starts(folder, name))
    began = time.monotonic()
    terminal.write(b"r")
    while len(starts(folder, name)) == before:
        assert time.monotonic() - began < 30, terminal.text()[-2000:]
        terminal.take(0.001)
    return (time.monotonic() - began) * 1000


def starts(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def prepare(endpoint: Endpoint, workdir: Path, folder: Path, names: Sequence[str]) -> None:
    """An agent with all jobs running, made ready without the relay."""
    never = RestartPolicy(when="never")
    async with Link(endpoint) as link:
        await link.connected(20)
        release = await deploy(link, str(workdir), sys.executable)
        await ensure_agent(link, str(workdir), sys.executable, release, by="bench")
        jobs = tuple(
            JobSpec(name, "demo", ("/bin/sh", "-c", SCRIPT.format(folder=folder, name=name)), restart=never)
            for name in names
        )
        async with AgentClient(link, bridge_argv(str(workdir), sys.executable, release)) as agent:
            reply = await agent.apply(ApplyRequest(Plan("bench", release, jobs), by="bench"))
            assert reply.applied, reply.refused
            await until(lambda: all(starts(folder, name) for name in names), within=60)


def write_config(relay: Relay, server: OpenSshServer, folder: Path) -> Path:
    there = through(relay, server)
    config = folder / "config.toml"
    config.write_text(
        demo_config(
            port=relay.port, user=server.user, key=str(server.key), known_hosts=str(there.known_hosts),
            workdir=str(folder / "work"), python=sys.executable, model_dir="/no/model",
            sources={name: f"/no/{name}" for name in SOURCES}, size=1, server_port=1,
        )
    )  # fmt: skip
    return config


def end(workdir: Path) -> None:
    argv = [sys.executable, "-m", "pipeline.agent", "stop", "--jobs", "--workdir", str(workdir)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=120)
    for left in Path(paths.runtime_path(workdir)).iterdir():
        left.unlink()
    Path(paths.runtime_path(workdir)).rmdir()


def peer(endpoint: Endpoint, folder: Path) -> tuple[Times, Times]:
    """``ssh host true``: with a connection of its own each time, and over one that stays open."""
    control = folder / "control"
    argv = [
        "ssh", "-F", "none", "-p", str(endpoint.port), "-i", str(endpoint.identity_files[0]),
        "-o", f"UserKnownHostsFile={endpoint.known_hosts}", "-o", "BatchMode=yes", "-o", f"ControlPath={control}",
        f"{endpoint.user}@{endpoint.host}",
    ]  # fmt: skip
    own = [timed([*argv[:1], "-S", "none", *argv[1:], "true"]) for _ in range(PEER_ROUNDS)]
    subprocess.run([*argv[:1], "-M", "-N", "-f", *argv[1:]], check=True, timeout=30)
    try:
        shared = [timed([*argv, "true"]) for _ in range(PEER_ROUNDS)]
    finally:
        subprocess.run([*argv[:1], "-O", "exit", *argv[1:]], check=True, capture_output=True, timeout=30)
    return Times.of(own), Times.of(shared)


def timed(argv: Sequence[str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, timeout=30)
    return (time.monotonic() - began) * 1000
