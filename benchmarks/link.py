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
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console.link.connect import Endpoint
from pipeline.agent import paths
from tests.link.conftest import through
from tests.link.real_console import console, prepare, relayed, starts
from tests.pseudo_terminal import Terminal
from tests.sshd import OpenSshServer

ONE_WAY_S: Final = 0.025
ROUNDS: Final = 36
QUICK_ROUNDS: Final = 8
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
        it = stack.enter_context(relayed(server.port, ONE_WAY_S))
        endpoint = through(it.relay, server)
        (folder / "work").mkdir()
        stack.callback(end, folder / "work")
        deaths, keys = operated(server, endpoint, folder, rounds)
        own, shared = peer(endpoint, folder)
    times = {
        "job SIGKILLed → on the screen": deaths,
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


def operated(server: OpenSshServer, endpoint: Endpoint, folder: Path, rounds: int) -> tuple[Times, Times]:
    """How long deaths take to the screen, and restarts from the key; a job a round."""
    names = [f"bench:{number:02}" for number in range(rounds)]
    asyncio.run(prepare(server.endpoint, folder, names))
    deaths, restarts = [], []
    with console(endpoint, folder) as terminal:
        terminal.read_until(f"{names[0]} running", 60)
        for name in names:
            terminal.drain(random.uniform(0.5, 1.5))
            deaths.append(until_shown(terminal, folder, name))
            mark = len(terminal.seen)
            terminal.write(b"n")
            terminal.read_until(f"{name} failed ·", since=mark)
            terminal.drain(random.uniform(0.3, 1.0))
            restarts.append(until_running(terminal, folder, name))
    return Times.of(deaths), Times.of(restarts)


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


def end(workdir: Path) -> None:
    argv = [sys.executable, "-m", "pipeline.agent", "stop", "--jobs", "--workdir", str(workdir)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=120)
    shutil.rmtree(paths.runtime_path(workdir))


def peer(endpoint: Endpoint, folder: Path) -> tuple[Times, Times]:
    """``ssh host true``: with a connection of its own each time, and over one that stays open."""
    control = folder / "control"
    ssh = [
        "ssh", "-F", "none", "-p", str(endpoint.port), "-i", str(endpoint.identity_files[0]), "-o", "BatchMode=yes",
        "-o", f"UserKnownHostsFile={endpoint.known_hosts}",
    ]  # fmt: skip
    where = f"{endpoint.user}@{endpoint.host}"
    own = [timed([*ssh, where, "true"]) for _ in range(PEER_ROUNDS)]
    subprocess.run([*ssh, "-M", "-S", str(control), "-N", "-f", where], check=True, timeout=30)
    try:
        shared = [timed([*ssh, "-S", str(control), where, "true"]) for _ in range(PEER_ROUNDS)]
    finally:
        subprocess.run([*ssh, "-S", str(control), "-O", "exit", where], check=True, capture_output=True, timeout=30)
    return Times.of(own), Times.of(shared)


def timed(argv: Sequence[str]) -> float:
    began = time.monotonic()
    subprocess.run(argv, check=True, timeout=30)
    return (time.monotonic() - began) * 1000
