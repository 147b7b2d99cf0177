"""Both servers: the demo's loopback container and OpenSSH. Tests to which the server matters run against each."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.link.connect import Endpoint
from pipeline.agent import paths
from pipeline.agent.attempts import identity
from pipeline.demo import container
from tests.link.relay import Relay
from tests.sshd import OpenSshServer, make_key, openssh_server
from tests.waiting import wait_until

__all__ = ["openssh_server"]


class LoopbackServer:
    """The demo's container, driven through its command line, with the methods of ``OpenSshServer``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first_known_hosts = folder / "first_known_hosts"

    @property
    def endpoint(self) -> Endpoint:
        found = container.read(self.folder)
        assert found is not None
        return Endpoint("127.0.0.1", found.port, found.user, (Path(found.key),), self._first_known_hosts, ssh_config=())

    def change_host_key(self) -> None:
        make_key(self.folder / "host_key")

    def start(self) -> None:
        argv = [sys.executable, "-m", "pipeline.demo.container", "--dir", str(self.folder)]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        if not self._first_known_hosts.exists():
            self._first_known_hosts.write_bytes((self.folder / "known_hosts").read_bytes())

    def kill(self) -> None:
        found = container.running(self.folder)
        if found is None:
            return
        process = identity.Process(found.pid, found.start)
        assert identity.send(process, signal.SIGKILL)
        wait_until(lambda: not identity.alive(process), "the end of the loopback container")


Server = OpenSshServer | LoopbackServer


def through(relay: Relay, server: Server) -> Endpoint:
    """The same server, reached by way of a relay."""
    there = server.endpoint
    assert there.known_hosts is not None
    known_hosts = there.known_hosts.with_name("relayed_hosts")
    known_hosts.write_text(there.known_hosts.read_text().replace(f":{there.port} ", f":{relay.port} "))
    return dataclasses.replace(there, port=relay.port, known_hosts=known_hosts)


@contextlib.contextmanager
def _running(kind: str, folder: Path) -> Iterator[Server]:
    made: Server = LoopbackServer(folder) if kind == "loopback" else OpenSshServer(folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module", params=["loopback", "openssh"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module that leave it as it is."""
    with _running(request.param, tmp_path_factory.mktemp("shared") / "server") as made:
        yield made


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """OpenSSH alone, for what the same wire carries whoever holds its other end."""
    with _running("openssh", tmp_path_factory.mktemp("one") / "server") as made:
        yield made


@pytest.fixture(params=["loopback", "openssh"])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, which it may kill, or change the keys of."""
    with _running(request.param, tmp_path / "server") as made:
        yield made


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Path]:
    """A work directory; an agent that was started in it is ended, and its runtime folder removed."""
    folder = tmp_path / "work"
    folder.mkdir()
    runtime = Path(paths.runtime_dir(folder))
    yield folder
    if (folder / "agent" / "journal.db").exists():
        # A test may have ended the agent itself: only one that runs can say that no job is left.
        wait_until(lambda: all(run_agent(folder, *words) for words in (("start",), ("stop", "--jobs"))), "its end", 60)
    shutil.rmtree(runtime)


def run_agent(workdir: Path, *words: str) -> bool:
    """Run a command of the agent; whether it did what it should."""
    argv = [sys.executable, "-m", "pipeline.agent", *words, "--workdir", str(workdir)]
    return subprocess.run(argv, env=dict(os.environ), capture_output=True, timeout=60).returncode == 0
