"""The demo's loopback container: what the link tests do not already show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from pipeline.agent.attempts import identity
from pipeline.demo import container
from tests.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "container"
    container.stop(tmp_path / "container")


def connect(found: container.Container, user: str = "") -> asyncssh.misc._ACMWrapper[asyncssh.SSHClientConnection]:
    return asyncssh.connect(
        "127.0.0.1",
        found.port,
        username=user or found.user,
        client_keys=[found.key],
        known_hosts=found.known_hosts,
        agent_path=None,
        config=None,
    )


def test_starting_twice_finds_the_first(folder: Path) -> None:
    argv = [sys.executable, "-m", "pipeline.demo.container", "--dir", str(folder)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    first = container.start(folder)
    assert said[0] == said[1]
    assert container.running(folder) == first == container.read(folder)
    assert Path(first.key).stat().st_mode & 0o777 == 0o600
    assert container.stop(folder)
    assert container.running(folder) is None
    assert not container.stop(folder)
    again = container.start(folder)
    assert (again.port, again.key) == (first.port, first.key)
    assert again.pid != first.pid


def test_a_port_that_somebody_took_is_left_to_him(folder: Path) -> None:
    first = container.start(folder)
    container.stop(folder)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", first.port))
        other.listen()
        assert container.start(folder).port != first.port


def test_a_start_that_fails_says_why(folder: Path) -> None:
    folder.mkdir()
    (folder / "host_key").write_text("no key")
    with pytest.raises(RuntimeError, match=r"did not start: .*[Kk]ey.*container\.log"):
        container.start(folder)


async def test_a_session_has_a_clean_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "of the server's own environment")
    async with connect(container.start(folder)) as connection:
        done = await connection.run("/usr/bin/env -0; pwd >&2", check=True)
        names = {entry.partition("=")[0] for entry in str(done.stdout).split("\0") if entry}
        assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"HOME", "USER", "LOGNAME", "SHELL", "PATH"}
        assert str(done.stderr).strip() == str(Path.home().resolve())


async def test_signals_reach_the_command_and_its_end_comes_back(folder: Path) -> None:
    async with connect(container.start(folder)) as connection:
        process = await connection.create_process("exec sleep 600")
        process.send_signal("TERM")
        done = await process.wait()
        assert done.exit_signal is not None
        assert done.exit_signal[0] == "TERM"
        assert (await connection.run("exit 42")).exit_status == 42


async def test_files_travel_by_sftp(folder: Path, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "here").write_bytes(data)
    async with connect(container.start(folder)) as connection, connection.start_sftp_client() as sftp:
        await sftp.put(str(tmp_path / "here"), str(tmp_path / "there"))
        await sftp.posix_rename(str(tmp_path / "there"), str(tmp_path / "renamed"))
    assert (tmp_path / "renamed").read_bytes() == data


async def test_another_user_name_is_not_let_in(folder: Path) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        async with connect(container.start(folder), user="somebody-else"):
            pass


async def test_what_writes_to_a_client_that_has_gone_hears_of_it(folder: Path, tmp_path: Path) -> None:
    async with connect(container.start(folder)) as connection:
        process = await connection.create_process(f"echo $$ >{tmp_path}/pid; exec yes", encoding=None)
        assert await process.stdout.read(2) == b"y\n"
        found = identity.identify(int((tmp_path / "pid").read_text()))
        assert found is not None
    wait_until(lambda: not identity.alive(found), "the end of yes")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_detached_itself_outlives_the_server(folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    found = container.start(folder)
    async with connect(found) as connection:
        await connection.run(f"setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >{tmp_path}/pid", check=True)
        attached = await connection.create_process(f"echo $$ >{tmp_path}/attached; exec sleep 600")
        wait_until(lambda: (tmp_path / "attached").exists() and bool((tmp_path / "attached").read_text()), "its pid")
        pids = [int((tmp_path / name).read_text()) for name in ("pid", "attached")]
        started = [process for process in map(identity.identify, pids) if process is not None]
        assert len(started) == 2
        identity.send(identity.Process(found.pid, found.start), number)
        wait_until(lambda: container.running(folder) is None, "the end of the server")
        assert (await attached.wait()).exit_status is None
    assert identity.alive(started[0])
    for process in started:
        identity.send(process, signal.SIGKILL)
