"""Commands that are sent into a dying link: done once, or reported unknown and then resolved. Through OpenSSH."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from console import client as client_room
from console import commands
from console.client import AgentClient
from console.link.channel import bridge_argv
from console.link.deploy import deploy, ensure_agent
from console.link.errors import OutcomeUnknown
from console.link.reconnect import Link
from console.session import Session
from console.tui.app import Deck
from console.watching import Host
from pipeline.agent import paths
from pipeline.protocol import ActionReply, ActionRequest, ApplyRequest, JobSpec, JobState, Plan, RestartPolicy
from tests.agent.rig import until as eventually
from tests.link.conftest import Server, through
from tests.link.relay import Relay
from tests.link.test_client import agent_of, plan, request, until
from tests.link.test_cut import journaled
from tests.session.test_session import config_for
from tests.tui import screen

PYTHON = sys.executable
JOB = "prep:B5"
PIECES = (0, 1, 2, 4)
"""A request and what SSH sends with it are a few pieces; at each of them the wire may break."""


@dataclass
class Dying:
    """An agent with one job that runs, seen directly by a witness and by others through the relay."""

    relay: Relay
    link: Link
    bridge: tuple[str, ...]
    witness: AgentClient
    witness_link: Link

    async def attempt(self) -> int:
        return (await self.witness.state()).jobs[JOB].attempt

    async def actions(self) -> int:
        """How often somebody's wish was carried out."""
        return len([event for event in (await self.witness.state()).events if event.kind == "action"])

    async def arrives(self, attempt: int) -> bool:
        """Whether the request gets through: the job reaches ``attempt``, in a while that is enough."""
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            if await self.attempt() >= attempt:
                return True
            await asyncio.sleep(0.02)
        return False

    async def come_back(self) -> None:
        """The wire is there again, the connections of before are not."""
        await self.relay.break_off()
        self.relay.mend()
        self.link.retry()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AgentClient]:
        """A client whose session is open already, so that nothing but the request is on the wire."""
        await self.link.connected(20)
        async with AgentClient(self.link, self.bridge) as opened:
            await opened.state()
            yield opened


@contextlib.asynccontextmanager
async def dying(server: Server, workdir: Path) -> AsyncIterator[Dying]:
    assert server.endpoint.port is not None
    async with (
        Relay(server.endpoint.port) as relay,
        Link(server.endpoint) as direct,
        agent_of(direct, workdir) as (witness, release),
        Link(through(relay, server)) as link,
    ):
        await witness.apply(ApplyRequest(plan(release, "exec sleep 600"), by="test"))
        await until(witness, lambda state: state.jobs[JOB].pid is not None, "the job to run")
        yield Dying(relay, link, bridge_argv(str(workdir), PYTHON, release), witness, direct)


async def test_a_command_is_done_once_wherever_the_wire_breaks(one_server: Server, workdir: Path) -> None:
    async with dying(one_server, workdir) as it:
        arrived = set()
        for pieces in PIECES:
            async with it.client() as client:
                before, done = await it.attempt(), await it.actions()
                it.relay.cut_after(pieces)
                asked = asyncio.create_task(client.action(JOB, "restart", request()))
                arrived.add(await it.arrives(before + 1))
                assert not asked.done()
                await it.come_back()
                assert (await asked).done
                await until(it.witness, lambda state: state.jobs[JOB].state is JobState.READY, "the restart")
                assert await it.attempt() == before + 1
                assert await it.actions() == done + 1
        assert arrived == {True, False}  # it broke before the request was through, and after


async def test_a_command_given_up_is_resolved_and_never_done_late(
    one_server: Server, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_room, "RESOLVE_S", 1.0)
    async with dying(one_server, workdir) as it:
        outcomes = set()
        for pieces in PIECES:
            async with it.client() as client:
                before, asked = await it.attempt(), request()
                it.relay.cut_after(pieces)
                acting = asyncio.create_task(client.action(JOB, "restart", asked))
                arrived = await it.arrives(before + 1)
                await it.relay.break_off()
                with pytest.raises(OutcomeUnknown, match="not known whether it was done"):
                    await acting
                await it.come_back()
                await it.link.connected(20)
                reply = await client.withdraw(asked)
                assert reply.done is arrived, reply.text
                late = await it.witness.action(JOB, "restart", asked)  # as if the network had held it back
                assert late == reply
                await until(it.witness, lambda state: state.jobs[JOB].state is JobState.READY, "the restart")
                assert await it.attempt() == before + arrived
                outcomes.add(arrived)
        assert outcomes == {True, False}


async def test_the_screen_says_that_it_is_not_known_and_then_what_became_of_it(
    one_server: Server, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_room, "RESOLVE_S", 1.0)
    async with dying(one_server, workdir) as it:

        async def client(live: Link) -> AgentClient:
            return AgentClient(live, it.bridge)

        session = Session(lambda: contextlib.nullcontext(it.link), client, run="r", host_label="h", by="ana")
        app = Deck(session)
        async with app.run_test(size=(160, 40)) as pilot:
            await screen.until(pilot, lambda: app.snapshot.plan is not None, 40.0)
            it.relay.cut()
            await pilot.press("x")
            await screen.until_shown(pilot, f"stop {JOB}?")
            await pilot.press("y")
            await screen.until_shown(pilot, f"stopping {JOB} …")
            await it.relay.break_off()
            await screen.until_shown(pilot, "not known whether it was done")
            await screen.until_shown(pilot, "told here when the link is back")
            await it.come_back()
            await screen.until_shown(pilot, f"stopping {JOB}: not done: taken back by ana")
            assert app.snapshot.statuses[JOB].state is JobState.READY


@pytest.mark.parametrize("pieces", [0, 8])
async def test_a_command_of_the_command_line_says_what_became_of_it(
    one_server: Server, workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], pieces: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(client_room, "RESOLVE_S", 1.0)
    async with dying(one_server, workdir) as it:
        real, begun = AgentClient.action, asyncio.Event()

        async def action(self: AgentClient, name: str, wanted: client_room.Action, asked: ActionRequest) -> ActionReply:
            it.relay.cut_after(pieces)
            begun.set()
            return await real(self, name, wanted, asked)

        monkeypatch.setattr(AgentClient, "action", action)
        relayed = cast(Any, SimpleNamespace(endpoint=it.link.endpoint))
        acting = asyncio.create_task(commands.act(Host(config_for(relayed, workdir, tmp_path)), "restart", [JOB]))
        await begun.wait()
        arrived = await it.arrives(2)
        shown = ""

        def said() -> bool:
            nonlocal shown
            shown += capsys.readouterr().err
            return "not known whether it was done" in shown

        await it.relay.break_off()
        await eventually(said, within=30, what=shown)
        assert not acting.done()
        await it.come_back()
        code, out = await acting, capsys.readouterr()
        assert await it.attempt() == 1 + arrived
        if arrived:
            assert code == commands.WELL and out.out.startswith(f"{JOB}: ")
        else:
            assert code == commands.TROUBLE and f"{JOB}: not done: taken back by " in out.err
        assert arrived is (pieces > 0)


async def test_a_command_whose_outcome_stays_unknown_ends(
    one_server: Server, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_room, "RESOLVE_S", 0.5)
    monkeypatch.setattr(client_room, "OUTCOME_S", 1.0)
    async with dying(one_server, workdir) as it, it.client() as client:
        it.relay.cut()
        acting = asyncio.create_task(client.action(JOB, "restart", asked := request()))
        await it.relay.break_off()
        with pytest.raises(OutcomeUnknown):
            await acting
        with pytest.raises(OutcomeUnknown, match="still not known whether it was done"):
            await client.outcome(asked)
        await it.come_back()


async def test_another_journal_is_read_anew_however_long_it_is(one_server: Server, workdir: Path) -> None:
    """A container that was set up anew while the laptop slept: its events are not taken for the old run's."""
    async with dying(one_server, workdir) as it:

        async def client(live: Link) -> AgentClient:
            return AgentClient(live, it.bridge)

        session = Session(lambda: contextlib.nullcontext(it.link), client, run="r", host_label="h", by="ana")
        running = asyncio.create_task(session.run(lambda _: None))
        try:
            await eventually(lambda: JOB in session.snapshot.statuses, within=40)
            old = session.snapshot
            it.relay.cut()
            await it.relay.break_off()
            await it.witness.shutdown(request(), stop_jobs=True)
            await eventually(lambda: not Path(paths.runtime_path(workdir), "agent.sock").exists())
            await eventually(lambda: not Path(f"{paths.journal_path(workdir)}-wal").exists())
            shutil.rmtree(workdir / "agent")
            shutil.rmtree(workdir / "jobs")
            release = await deploy(it.witness_link, str(workdir), PYTHON)
            await ensure_agent(it.witness_link, str(workdir), PYTHON, release, by="test")
            other = JobSpec("other", "demo", ("/bin/true",), restart=RestartPolicy(when="never"))
            while (await it.witness.state()).seq <= old.seq + 5:
                await it.witness.apply(ApplyRequest(Plan("another run", release, (other,)), by="test"))
            await it.come_back()
            await eventually(lambda: session.snapshot.run == "another run", within=60)
            await eventually(lambda: session.snapshot.statuses["other"].state is JobState.DONE)
            assert JOB not in session.snapshot.statuses
            seen = {event.seq: event for event in session.snapshot.events}
            assert all(seen.get(event.seq, event) == event for event in journaled(workdir))
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
