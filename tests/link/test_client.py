"""Typed calls to a real agent through a real SSH server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from console import client as client_room
from console.client import AgentClient
from console.link.channel import bridge_argv
from console.link.deploy import deploy, ensure_agent
from console.link.errors import AgentError, LinkDown, OutcomeUnknown
from console.link.reconnect import Link
from pipeline.protocol import (
    ActionRequest,
    AgentInfo,
    ApplyRequest,
    Beat,
    Event,
    JobSpec,
    JobState,
    Plan,
    RestartPolicy,
    State,
    StreamLine,
)
from tests.link.conftest import Server, through
from tests.link.relay import Relay
from tests.link.test_channel import Serve, socket_server

PYTHON = sys.executable


def request(**more: str) -> ActionRequest:
    return ActionRequest(by="test", request=uuid.uuid4().hex, **more)


def plan(release: str, script: str) -> Plan:
    job = JobSpec(
        "prep:B5", "prep", ("/bin/sh", "-c", script), restart=RestartPolicy(when="never"), service=True, stop_grace_s=2
    )
    return Plan("test", release, (job,))


@contextlib.asynccontextmanager
async def agent_of(link: Link, workdir: Path, *, read_only: bool = False) -> AsyncIterator[tuple[AgentClient, str]]:
    """A client of the real agent, which is deployed and started if need be."""
    await link.connected(20)
    release = await deploy(link, str(workdir), PYTHON)
    await ensure_agent(link, str(workdir), PYTHON, release, by="test")
    async with AgentClient(link, bridge_argv(str(workdir), PYTHON, release, read_only=read_only)) as agent:
        yield agent, release


async def until(agent: AgentClient, holds: Callable[[State], bool], what: str) -> State:
    """Ask for the state until it is so."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(LinkDown):
                state = await agent.state()
                if holds(state):
                    return state
            await asyncio.sleep(0.05)
    raise AssertionError(what)


async def test_every_route(one_server: Server, workdir: Path) -> None:
    async with Link(one_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        applied = await agent.apply(ApplyRequest(plan(release, "echo first line; exec sleep 600"), by="test"))
        assert applied.applied, applied.refused
        await until(agent, lambda state: state.jobs["prep:B5"].pid is not None, "the job to run")
        await until(agent, lambda state: state.beat.jobs["prep:B5"].log_bytes > 0, "the job's first line")
        assert (await agent.log("prep:B5", 1, 0, 1000)).data == b"first line\n"
        assert (await agent.search("prep:B5", 1, "first")).offsets == (0,)
        detail = await agent.detail("prep:B5")
        assert detail.spec.argv[0] == "/bin/sh"
        assert (await agent.history("", "memory_used", 10)).figure == "memory_used"

        again = request()
        first, second = await agent.action("prep:B5", "restart", again), await agent.action("prep:B5", "restart", again)
        assert first == second
        assert first.done
        await until(agent, lambda state: state.jobs["prep:B5"].attempt == 2, "the second attempt")
        assert (await agent.action("prep:B5", "stop", request())).done
        stopped = await until(agent, lambda state: state.jobs["prep:B5"].state == JobState.STOPPED, "the stop")
        assert stopped.jobs["prep:B5"].attempt == 2

        with pytest.raises(AgentError, match=r"no job 'prep: B5\?&'"):
            await agent.detail("prep: B5?&")
        with pytest.raises(AgentError, match="not deployed"):
            await agent.upgrade("nothing", request())
        assert isinstance((await agent.restart_crashed(request())).done, bool)
        assert (await agent.shutdown(request())).done


async def test_a_read_only_console_changes_nothing(one_server: Server, workdir: Path) -> None:
    async with Link(one_server.endpoint) as link, agent_of(link, workdir, read_only=True) as (agent, release):
        assert (await agent.state()).plan is None
        with pytest.raises(AgentError):
            await agent.apply(ApplyRequest(plan(release, "true"), by="test"))
        with pytest.raises(AgentError):
            await agent.shutdown(request())
        assert (await agent.state()).plan is None


async def test_after_a_gap_every_event_comes_once_and_in_order(one_server: Server, workdir: Path) -> None:
    async with Link(one_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))
        state = await until(agent, lambda state: state.jobs["prep:B5"].pid is not None, "the job to run")
        seen: list[int] = []
        with pytest.raises(LinkDown):
            async for line in agent.stream(0):
                if line.event is not None:
                    seen.append(line.event.seq)
                elif line.beat is not None and seen and seen[-1] >= state.seq:
                    os.kill(state.agent.pid, signal.SIGKILL)
        assert (await agent.action("prep:B5", "stop", request())).done  # waits for the keeper's new agent
        last = await until(agent, lambda state: state.jobs["prep:B5"].state == JobState.STOPPED, "the stop")
        assert last.agent.pid != state.agent.pid
        async with contextlib.aclosing(agent.stream(seen[-1])) as stream:
            async for line in stream:
                if line.event is not None:
                    seen.append(line.event.seq)
                if seen[-1] >= last.seq:
                    break
        assert seen == list(range(1, seen[-1] + 1))


async def test_a_command_whose_answer_is_lost_is_done_once(server: Server, workdir: Path) -> None:
    assert server.endpoint.port is not None
    async with (
        Relay(server.endpoint.port) as relay,
        Link(server.endpoint) as direct,
        agent_of(direct, workdir) as (witness, release),
        Link(through(relay, server)) as link,
        AgentClient(link, bridge_argv(str(workdir), PYTHON, release)) as agent,
    ):
        await link.connected(20)
        await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))
        await until(agent, lambda state: state.jobs["prep:B5"].pid is not None, "the job to run")
        async with AgentClient(link, bridge_argv(str(workdir), PYTHON, release)) as other:
            await other.state()  # its session is open, so the command can go out although no answer comes back
            relay.cut(answers_only=True)
            asked = asyncio.create_task(other.action("prep:B5", "restart", request()))
            await until(witness, lambda state: state.jobs["prep:B5"].attempt == 2, "the restart")
            assert not asked.done()
            await relay.break_off()
            relay.mend()
            assert (await asked).done
        settled = await witness.state()
        assert settled.jobs["prep:B5"].attempt == 2
        assert len([event for event in settled.events if event.kind == "action" and event.job == "prep:B5"]) == 1


async def test_a_change_is_not_begun_on_a_dead_link(own_server: Server, workdir: Path) -> None:
    async with Link(own_server.endpoint) as link, AgentClient(link, ("true",)) as agent:
        await link.connected(20)
        own_server.kill()
        async with asyncio.timeout(20):
            async for status in link.changes():
                if status.state == "lost":
                    break
        with pytest.raises(LinkDown, match=r"127\.0\.0\.1"):
            await agent.shutdown(request())


def serves(*parts: bytes, status: str = "200 OK") -> Serve:
    """An HTTP server that sends these chunks, whatever it is asked, and then says nothing more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for part in parts:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            if parts[-1]:
                await reader.read()  # until the caller gives up

    return serve


@pytest.fixture
def bridged(workdir: Path) -> Callable[[Link], Awaitable[AgentClient]]:
    """Makes a client of whatever is on the agent's socket."""

    async def make(link: Link) -> AgentClient:
        await link.connected(20)
        release = await deploy(link, str(workdir), PYTHON)
        return AgentClient(link, bridge_argv(str(workdir), PYTHON, release))

    return make


async def test_stream_lines_may_be_torn_and_hold_any_character(
    one_server: Server,
    workdir: Path,
    bridged: Callable[[Link], Awaitable[AgentClient]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_room, "SILENCE_S", 1.0)
    lines = [
        StreamLine(event=Event(1, 0.0, "agent", "separators \u2028 \u2029 \x85 \x0b \x0c stay inside")),
        StreamLine(beat=Beat(1.0, 1, None, {})),
    ]
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    async with Link(one_server.endpoint) as link:
        agent = await bridged(link)
        async with agent, socket_server(workdir, serves(data[:7], data[7:90], data[90:])):
            got: list[StreamLine] = []
            with pytest.raises(LinkDown, match="does not answer"):
                async for line in agent.stream(0):
                    got.append(line)  # noqa: PERF401 - the exception ends it
            assert got == lines


async def test_answers_that_make_no_sense_are_told(
    one_server: Server, workdir: Path, bridged: Callable[[Link], Awaitable[AgentClient]]
) -> None:
    foreign = State(AgentInfo(1, 0.0, "abc", "/w", "c", True, protocol=99), 0.0, 0, None, {}, Beat(0.0, 0, None, {}))
    cases = {
        "protocol 99": serves(msgspec.json.encode(foreign), b""),
        "is not understood": serves(b'{"agent": 1}', b""),
        "answered 500: Internal": serves(b"Internal\x1b[2J Server Error", b"", status="500 Internal Server Error"),
    }
    async with Link(one_server.endpoint) as link:
        agent = await bridged(link)
        for text, serve in cases.items():
            async with agent, socket_server(workdir, serve):
                with pytest.raises(AgentError, match=text) as error:
                    await agent.state()
                assert str(error.value).isprintable()


async def test_a_conversation_that_is_given_up_while_a_call_waits_for_its_place_is_a_lost_wire(
    one_server: Server, workdir: Path
) -> None:
    async with Link(one_server.endpoint) as link, agent_of(link, workdir) as (agent, _):
        places = link.sessions.requests
        async with contextlib.AsyncExitStack() as taken:
            for _ in range(places.places):
                await taken.enter_async_context(places.place())
            waiting = asyncio.create_task(agent.state())
            await asyncio.sleep(0)
            await agent._http.aclose()
        with pytest.raises(LinkDown, match="was given up"):
            await waiting


async def test_a_plan_is_never_sent_twice(one_server: Server, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Link(one_server.endpoint) as link, agent_of(link, workdir) as (agent, release):
        sent: list[str] = []
        request_now = agent._http.request

        async def lost(method: str, path: str, **kwargs: Any) -> Any:
            sent.append(method)
            await request_now(method, path, **kwargs)
            raise httpx.ReadError("the wire failed after the agent had it")

        monkeypatch.setattr(agent._http, "request", lost)
        with pytest.raises(OutcomeUnknown, match="apply again"):
            await agent.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))
        monkeypatch.undo()
        assert sent == ["PUT"]
        assert (await agent.state()).plan is not None
