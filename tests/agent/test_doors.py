"""What the agent is found by: removed, opened to others, or left unread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline.agent import launch, paths
from pipeline.agent.attempts.identity import Process
from pipeline.protocol import JobState, RestartPolicy
from tests.agent.rig import RELEASE, Rig, shell, survivors, until

S = JobState


def _unlink(*names: str) -> Callable[[Rig], None]:
    def remove(rig: Rig) -> None:
        for name in names:
            (rig.runtime / name).unlink()

    return remove


def _folder(rig: Rig) -> None:
    shutil.rmtree(rig.runtime)


@pytest.mark.parametrize(
    "remove",
    [_unlink("agent.lock"), _unlink("agent.lock", "keeper.lock"), _unlink("agent.sock", "read.sock"), _folder],
    ids=["lock", "locks", "sockets", "folder"],
)
async def test_a_cleaner_of_tmp_makes_no_second_agent_and_the_sockets_come_back(
    agent: Rig, remove: Callable[[Rig], None]
) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    before = await agent.reach("a", S.RUNNING)
    old, keeper = agent.holder("agent"), agent.holder("keeper")
    assert old is not None and keeper is not None
    remove(agent)
    # Whoever looks for the agent meanwhile does not find it, and tries to start one.
    second = await asyncio.create_subprocess_exec(*agent.command("run"), env=agent.environment)
    paths.runtime_dir(agent.workdir)
    launch.spawn_keeper(agent.workdir, agent.runtime)
    assert await asyncio.wait_for(second.wait(), 20) == 0
    await until(lambda: agent.holder("agent") == old and agent.holder("keeper"), what="agent and keeper to be found")

    async def answers() -> bool:
        with contextlib.suppress(Exception):
            state = await agent.state()
            return state.agent.pid == old.pid and state.agent.keeper and state.jobs["a"] == before
        return False

    await until(answers, what="the agent on its socket")
    await until(lambda: _counted(agent) == (1, 1), what="one agent and one keeper")
    # And the new files are as good as the old ones: a killed agent is replaced, a job is stopped.
    os.kill(old.pid, signal.SIGKILL)
    await agent.replaced("agent", old)
    assert await agent.reach("a", S.RUNNING) == before
    await agent.act("a", "stop")
    await agent.reach("a", S.STOPPED)


async def test_of_two_machines_with_one_work_directory_one_has_an_agent(rig: Rig) -> None:
    """A network file system has two machines: to each its own runtime directory and journal."""
    script = (
        "import sys; from pipeline.agent import __main__, paths\n"
        "paths.on_network = lambda path: True\n"
        "paths.runtime_path = lambda workdir: sys.argv[1]\n"
        "sys.exit(__main__.main(['run', '--workdir', sys.argv[2]]))"
    )
    runtimes = [rig.workdir / name for name in ("one", "two")]
    for runtime in runtimes:
        runtime.mkdir(0o700)
        (runtime / "keeper.lock").touch()
    python = (sys.executable, "-P", "-c", script)
    pipe = asyncio.subprocess.PIPE
    begin = partial(asyncio.create_subprocess_exec, *python, env=rig.environment, stderr=pipe)
    first = await begin(str(runtimes[0]), str(rig.workdir))
    await until(lambda: (runtimes[0] / "agent.sock").exists(), what="the first machine's agent")
    assert (runtimes[0] / "journal.db").exists()
    second = await begin(str(runtimes[1]), str(rig.workdir))
    _, said = await asyncio.wait_for(second.communicate(), 20)
    assert second.returncode == 1 and b"an agent of another machine has" in said
    # Nor is there a second one when the first one's runtime directory, journal and all, was removed.
    shutil.rmtree(runtimes[0])
    runtimes[0].mkdir(0o700)
    third = await begin(str(runtimes[0]), str(rig.workdir))
    assert await asyncio.wait_for(third.wait(), 20) == 1
    first.kill()
    await first.communicate()
    fourth = await begin(str(runtimes[1]), str(rig.workdir))
    await until(lambda: (runtimes[1] / "agent.sock").exists(), what="the second machine's agent")
    fourth.kill()
    await fourth.communicate()


def _counted(rig: Rig) -> tuple[int, int]:
    """How many agents and how many keepers of the work directory there are."""
    lines = []
    for pid in survivors(rig.workdir):
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return sum(b"\0run\0" in line for line in lines), sum(b"keeper.py" in line for line in lines)


async def test_agents_and_keepers_that_start_at_once_become_one_of_each(rig: Rig) -> None:
    for _ in range(3):
        for _ in range(3):
            launch.spawn_keeper(rig.workdir, rig.runtime)
        racing = [await asyncio.create_subprocess_exec(*rig.command("run"), env=rig.environment) for _ in range(3)]
        await rig.start()
        await until(lambda: _counted(rig) == (1, 1), what="one agent and one keeper")
        await rig.end()
        for process in racing:
            await asyncio.wait_for(process.wait(), 10)


@pytest.mark.parametrize("name", ["agent.sock", "read.sock"])
async def test_a_socket_open_to_others_is_refused(agent: Rig, name: str) -> None:
    script = str(Path(paths.release_dir(agent.workdir, RELEASE)) / "pipeline" / "agent" / "bridge.py")
    command = [sys.executable, "-I", "-S", script, "--workdir", str(agent.workdir)]
    command += ["--read-only"] if name == "read.sock" else []
    request = b"GET /v1/state HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

    def ask() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, input=request, capture_output=True, timeout=20)

    found = agent.runtime / name
    assert found.stat().st_mode & 0o777 == 0o600 and agent.runtime.stat().st_mode & 0o777 == 0o700
    found.chmod(0o660)
    done = await asyncio.to_thread(ask)
    assert done.returncode == 69 and b"has mode 660; run: chmod 600" in done.stderr and not done.stdout
    found.chmod(0o600)
    assert (await asyncio.to_thread(ask)).returncode == 0
    if os.getuid() == 0:
        os.chown(found, 12345, -1)
        done = await asyncio.to_thread(ask)
        assert done.returncode == 69 and b"belongs to user 12345, not 0" in done.stderr
        os.chown(found, 0, -1)
        os.chown(agent.runtime, 12345, -1)
        done = await asyncio.to_thread(ask)
        assert done.returncode == 69 and b"belongs to user 12345, not 0" in done.stderr
        os.chown(agent.runtime, 0, -1)
    agent.runtime.chmod(0o750)
    done = await asyncio.to_thread(ask)
    assert done.returncode == 69 and b"has mode 750; run: chmod 700" in done.stderr
    agent.runtime.chmod(0o700)


@pytest.mark.long
async def test_a_console_that_stops_reading_is_cut_off_and_costs_nothing(agent: Rig) -> None:
    # Beats of 60 jobs, twenty times a second, soon fill what the kernel keeps for a reader.
    churning = RestartPolicy(when="always", limit=10_000, backoff_s=0.05, backoff_max_s=0.05)
    await agent.apply(
        shell("busy", "sleep 0.05; exit 1", restart=churning), *(shell(f"j{n}", f"echo {'x' * 180}") for n in range(60))
    )
    for number in range(60):
        await agent.reach(f"j{number}", S.DONE, within=60)
    process = agent.holder("agent")
    assert process is not None
    reader = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    reader.connect(str(agent.runtime / "agent.sock"))
    reader.sendall(b"GET /v1/events?since=0 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert reader.recv(15) == b"HTTP/1.1 200 OK"
    before = _rss(process)
    try:
        await until(lambda: _peer_closed(reader), within=60, what="the connection to be cut")
    finally:
        reader.close()
    assert _rss(process) - before < 8 << 20
    assert (await agent.state()).agent.pid == process.pid


def _rss(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peer_closed(reader: socket.socket) -> bool:
    """Whether the other side has closed, without reading anything."""
    poller = select.poll()
    poller.register(reader, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poller.poll(0))
