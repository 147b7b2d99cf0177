"""SSH servers and login shells as operators meet them: chatty, slow, strict, full. Real OpenSSH throughout."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from console.client import AgentClient
from console.link.channel import AgentChannel, bridge_argv
from console.link.deploy import current_release, deploy, ensure_agent, local_release
from console.link.errors import DeployError, LinkDown
from console.link.reconnect import Link
from console.session import Session
from pipeline.agent import paths
from pipeline.protocol import ApplyRequest, JobState
from tests.agent.mounts import tmpfs
from tests.link.test_client import agent_of, plan, request, until
from tests.link.test_connect import reach
from tests.sshd import OpenSshServer

PYTHON = sys.executable
JOB = "prep:B5"


def login_shell(server: OpenSshServer, script: str) -> None:
    """What the login shell does in every session. bash reads this file under sshd, also without a terminal."""
    (server.folder / "home" / ".bashrc").write_text(script)


@contextlib.asynccontextmanager
async def session_on(link: Link, bridge: tuple[str, ...]) -> AsyncIterator[Session]:
    """A session that follows the agent, when it has seen its state."""

    async def client(live: Link) -> AgentClient:
        return AgentClient(live, bridge)

    session = Session(lambda: contextlib.nullcontext(link), client, run="r", host_label="h", by="ana")
    running = asyncio.create_task(session.run(lambda _: None))
    try:
        await holds(lambda: session.snapshot.agent is not None, "the agent's state")
        yield session
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def holds(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def test_a_login_shell_that_prints_does_not_matter(openssh_server: OpenSshServer, workdir: Path) -> None:
    banner = openssh_server.folder / "banner"
    banner.write_text("Authorised use only\n")
    openssh_server.extra.append(f"Banner {banner}")
    openssh_server.restart()
    login_shell(openssh_server, 'echo "Welcome to gpu-3"; printf "no end of line"; echo "a warning" >&2\n')
    async with Link(openssh_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        assert (await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))).applied
        async with session_on(link, bridge_argv(str(workdir), PYTHON, release)) as session:
            await holds(lambda: session.snapshot.statuses[JOB].state is JobState.READY, "the job to run")
            assert (await session.act("stop", JOB)).done
            await holds(lambda: session.snapshot.statuses[JOB].state is JobState.STOPPED, "the stop")


async def test_a_login_shell_that_ends_the_session_is_quoted(openssh_server: OpenSshServer, workdir: Path) -> None:
    login_shell(openssh_server, 'echo "This account is for file transfer only"; exit 0\n')
    async with Link(openssh_server.endpoint) as link:
        await link.connected(20)
        with pytest.raises(DeployError, match="This account is for file transfer only"):
            await deploy(link, str(workdir), PYTHON)
        async with AgentChannel(link, bridge_argv(str(workdir), PYTHON, "0" * 16)) as channel, channel.http() as http:
            reply = await http.get("/v1/state")
            assert reply.status_code == 502
            assert "This account is for file transfer only" in reply.json()["error"]


async def test_a_login_shell_without_end_is_given_up(openssh_server: OpenSshServer, workdir: Path) -> None:
    login_shell(openssh_server, "yes Welcome to gpu-3 | head -c 3000000\n")
    async with Link(openssh_server.endpoint) as link:
        await link.connected(20)
        async with AgentChannel(link, bridge_argv(str(workdir), PYTHON, "0" * 16)) as channel, channel.http() as http:
            error = (await http.get("/v1/state")).json()["error"]
            assert error.startswith("the login shell prints without end: Welcome to gpu-3")


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_login_shell_that_takes_five_seconds_is_waited_for(
    openssh_server: OpenSshServer, workdir: Path
) -> None:
    login_shell(openssh_server, "sleep 5\n")
    async with Link(openssh_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        assert (await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))).applied
        async with session_on(link, bridge_argv(str(workdir), PYTHON, release)) as session:
            await holds(lambda: JOB in session.snapshot.statuses, "the plan")
            began = time.monotonic()
            assert (await session.act("stop", JOB)).done
            assert time.monotonic() - began < 5  # the connection that was open already
            await holds(lambda: session.snapshot.statuses[JOB].state is JobState.STOPPED, "the stop")


async def test_two_sessions_are_enough(openssh_server: OpenSshServer, workdir: Path) -> None:
    openssh_server.extra.append("MaxSessions 2")
    openssh_server.restart()
    async with Link(openssh_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        assert (await agent.apply(ApplyRequest(plan(release, "echo a line; exec sleep 600"), by="test"))).applied
        await until(agent, lambda state: state.beat.jobs[JOB].log_bytes > 0, "the job's first line")
    async with Link(openssh_server.endpoint) as link:
        await link.connected(20)
        async with session_on(link, bridge_argv(str(workdir), PYTHON, release)) as session:
            began = time.monotonic()
            pages = await asyncio.gather(*(session.log(JOB, 1, 0, 100) for _ in range(12)))
            assert {page.data for page in pages} == {b"a line\n"}
            assert (await session.act("stop", JOB)).done
            await holds(lambda: session.snapshot.statuses[JOB].state is JobState.STOPPED, "the stop")
            assert time.monotonic() - began < 25  # nobody waited for a time-out
            assert session.snapshot.link.detail == ""


async def test_one_session_is_too_few_and_said_so(openssh_server: OpenSshServer, workdir: Path) -> None:
    openssh_server.extra.append("MaxSessions 1")
    openssh_server.restart()
    async with Link(openssh_server.endpoint) as link:
        await link.connected(20)
        release = await deploy(link, str(workdir), PYTHON)
        await ensure_agent(link, str(workdir), PYTHON, release, by="test")
        async with session_on(link, bridge_argv(str(workdir), PYTHON, release)) as session:
            await holds(lambda: "needs MaxSessions 2 or more" in session.snapshot.link.detail, "the reason")


async def test_a_server_that_takes_no_more_logins_now_is_tried_again(openssh_server: OpenSshServer) -> None:
    openssh_server.extra.append("MaxStartups 1:100:1")
    openssh_server.restart()
    with socket.create_connection(("127.0.0.1", openssh_server.port)) as other:  # a login that never comes to an end
        other.recv(10)
        async with Link(openssh_server.endpoint) as link:
            lost = await reach(link, "lost")
            assert "cannot reach 127.0.0.1" in lost.detail
            other.close()
            await reach(link, "live")


@pytest.mark.long
async def test_sessions_that_the_server_ends_when_idle_are_opened_again(
    openssh_server: OpenSshServer, workdir: Path
) -> None:
    async with Link(openssh_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        assert (await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))).applied
        openssh_server.extra += ["ChannelTimeout session:command=4s", "LogLevel VERBOSE"]
        try:
            openssh_server.restart()
        except AssertionError:
            pytest.skip("this OpenSSH has no ChannelTimeout (9.2 and later)")
        await reach(link, "lost")
        await link.connected(20)
        with pytest.raises(LinkDown, match="the SSH server ended the session while sleep ran"):
            await link.run(["sleep", "30"])
        async with session_on(link, bridge_argv(str(workdir), PYTHON, release)) as session:
            began = len(started_sessions(openssh_server))
            await asyncio.sleep(6)  # the idle time is what is tested
            assert session.snapshot.link.state == "live"
            assert not session.snapshot.link.detail  # the stream's beats kept it alive
            assert (await session.act("stop", JOB)).done
            await holds(lambda: session.snapshot.statuses[JOB].state is JobState.STOPPED, "the stop")
            assert len(started_sessions(openssh_server)) > began


def started_sessions(server: OpenSshServer) -> list[str]:
    return [line for line in (server.folder / "sshd.log").read_text().splitlines() if "Starting session" in line]


async def test_a_disk_that_is_full_is_named_and_later_there_is_room(
    openssh_server: OpenSshServer, tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "small", 200_000) as workdir:
        async with Link(openssh_server.endpoint) as link:
            await link.connected(20)
            with pytest.raises(DeployError, match="No space left on device"):
                await deploy(link, str(workdir), PYTHON)
            assert not [path for path in (workdir / "releases").iterdir() if not path.name.startswith(".")]
            assert await current_release(link, str(workdir), PYTHON) == ""
            give_room(workdir)
            assert await deploy(link, str(workdir), PYTHON) == local_release().name


def give_room(mount: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(mount)], check=True)


def change_mode(path: Path, mode: int) -> int:
    """Returns the mode of before."""
    before = path.stat().st_mode & 0o777
    path.chmod(mode)
    return before


@pytest.mark.parametrize("what, mode, words", [("", 0o755, "chmod 700"), ("agent.sock", 0o666, "agent.sock")])
async def test_a_runtime_folder_or_socket_open_to_others_is_refused(
    openssh_server: OpenSshServer, workdir: Path, what: str, mode: int, words: str
) -> None:
    async with Link(openssh_server.endpoint) as link, agent_of(link, workdir) as (_, release):
        place = Path(paths.runtime_path(workdir), what)
        before = change_mode(place, mode)
        async with AgentClient(link, bridge_argv(str(workdir), PYTHON, release)) as fresh:
            with pytest.raises(LinkDown, match=words):
                await fresh.state()
            change_mode(place, before)
            assert (await fresh.state()).agent.release == release


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_crafted_request_changes_nothing_over_the_read_only_socket(
    openssh_server: OpenSshServer, workdir: Path, read_only: bool
) -> None:
    body = b'{"by": "mallory", "request": "%s"}' % request().request.encode()
    heads = [
        b"POST /v1/jobs/prep:B5/stop HTTP/1.1",
        b"POST /v1/jobs/prep%3AB5/stop HTTP/1.1",
        b"POST /v1/jobs/x/../prep:B5/stop HTTP/1.1",
        b"POST http://agent/v1/jobs/prep:B5/stop HTTP/1.1",
        b"GET /v1/jobs/prep:B5/stop HTTP/1.1\r\nX-HTTP-Method-Override: POST",
        b"POST /v1/shutdown?jobs=stop HTTP/1.1",
        b"PUT /v1/plan HTTP/1.1",
        b"POST /v1/withdraw HTTP/1.1",
    ]
    async with Link(openssh_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        assert (await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))).applied
        await until(agent, lambda state: state.jobs[JOB].pid is not None, "the job to run")
        before = await agent.state()
        bridge = bridge_argv(str(workdir), PYTHON, release, read_only=read_only)
        async with AgentChannel(link, bridge) as channel:
            codes = [await raw(channel, head, body) for head in heads[: None if read_only else 1]]
        if not read_only:  # the same words over the other socket do it: the test can tell
            assert codes == [200]
            await until(agent, lambda state: state.jobs[JOB].state is JobState.STOPPED, "the stop")
            return
        assert set(codes) <= {404, 405}
        after = await agent.state()
        assert (after.seq, after.jobs, after.agent.pid) == (before.seq, before.jobs, before.agent.pid)


async def raw(channel: AgentChannel, head: bytes, body: bytes) -> int:
    """Send bytes that no HTTP client had a say in; the status of the answer."""
    reader, writer = await asyncio.open_unix_connection(channel.address)
    length = b"Content-Length: %d\r\nConnection: close" % len(body)
    writer.write(b"%s\r\nHost: agent\r\n%s\r\n\r\n%s" % (head, length, body))
    status = await asyncio.wait_for(reader.readline(), 20)
    writer.close()
    return int(status.split()[1])


async def test_several_consoles_follow_one_agent(openssh_server: OpenSshServer, workdir: Path) -> None:
    async with (
        Link(openssh_server.endpoint) as first,
        agent_of(first, workdir) as (agent, release),
        Link(openssh_server.endpoint) as second,
        Link(openssh_server.endpoint) as third,
    ):
        assert (await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))).applied
        bridge = bridge_argv(str(workdir), PYTHON, release)
        watcher = bridge_argv(str(workdir), PYTHON, release, read_only=True)
        async with (
            session_on(first, bridge) as ana,
            session_on(second, bridge) as ben,
            session_on(third, watcher) as eve,
        ):
            everybody = (ana, ben, eve)
            await holds(lambda: all(each.snapshot.statuses[JOB].pid for each in everybody), "the job to run")
            replies = await asyncio.gather(ana.act("restart", JOB), ben.act("restart", JOB))
            assert all(reply.done for reply in replies)
            assert (await ben.act("stop", JOB)).done
            for each in everybody:
                await holds(lambda each=each: each.snapshot.statuses[JOB].state is JobState.STOPPED, "the stop")  # type: ignore[misc]
            assert ana.snapshot.events == ben.snapshot.events == eve.snapshot.events
