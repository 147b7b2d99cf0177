"""The session against a real agent over a real SSH server: it follows, catches up, acts, and says what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from console import commands, headless, report, watching
from console.client import AgentClient
from console.config import load
from console.controls import ControlError
from console.demo_config import SOURCES, demo_config
from console.link.channel import bridge_argv
from console.link.deploy import deploy, ensure_agent
from console.link.errors import DeployError
from console.link.reconnect import Link
from console.session import ClientFactory, Session
from console.tui.app import Deck
from console.view import Snapshot, attention
from console.watching import Host
from pipeline.agent import locks
from pipeline.agent.attempts.identity import send
from pipeline.agent.attempts.secret_files import write_secret
from pipeline.agent.paths import journal_path, runtime_dir
from pipeline.agent.store import Store
from pipeline.protocol import ActionRequest, ApplyRequest, Event, JobSpec, JobState, Need, Plan, RestartPolicy
from tests.agent.receiver import receiver
from tests.link.conftest import LoopbackServer, Server
from tests.tui.screen import until, until_shown

PYTHON = sys.executable
SCRIPT = "echo first line of [rank0]; exec sleep 600"


def plan(release: str, script: str = SCRIPT) -> Plan:
    never = RestartPolicy(when="never")
    return Plan(
        "test run",
        release,
        (
            JobSpec("prep:B5", "prep", ("/bin/sh", "-c", script), restart=never, stop_grace_s=2),
            JobSpec("prep:B6", "prep", ("/bin/sh", "-c", "echo no; exit 7"), restart=never),
        ),
    )


def config_for(server: Server, workdir: Path, folder: Path) -> Path:
    """A config that names the server and the work directory."""
    there, config = server.endpoint, folder / "config.toml"
    config.write_text(
        demo_config(
            port=there.port or 0,
            user=there.user or "",
            key=str(there.identity_files[0]),
            known_hosts=str(there.known_hosts),
            workdir=str(workdir),
            python=PYTHON,
            model_dir="/no/model",
            sources={name: f"/no/{name}" for name in SOURCES},
            size=1,
            server_port=1,
        )
    )
    return config


class Following:
    """A session that runs, and the agent's client behind it."""

    def __init__(self, session: Session, link: Link, workdir: Path) -> None:
        self.session = session
        self.link = link
        self.workdir = workdir
        self._changed = asyncio.Event()

    def note(self, _: Snapshot) -> None:
        self._changed.set()

    async def until(self, holds: Callable[[Snapshot], bool]) -> Snapshot:
        async with asyncio.timeout(40):
            while not holds(self.session.snapshot):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.2)
        return self.session.snapshot

    async def state(self, job: str, state: JobState) -> Snapshot:
        return await self.until(lambda seen: job in seen.statuses and seen.statuses[job].state is state)


def told(text: str, snapshot: Snapshot) -> bool:
    return any(event.text == text for event in snapshot.events)


def agent_pid(snapshot: Snapshot) -> int:
    assert snapshot.agent is not None
    return snapshot.agent.pid


def client_for(workdir: Path) -> ClientFactory:
    """Deploys, starts the agent if need be, gives it the plan if it has none."""

    async def client(live: Link) -> AgentClient:
        release = await deploy(live, str(workdir), PYTHON)
        await ensure_agent(live, str(workdir), PYTHON, release, by="test")
        opened = AgentClient(live, bridge_argv(str(workdir), PYTHON, release))
        async with AgentClient(live, bridge_argv(str(workdir), PYTHON, release)) as own:
            if (await own.state()).plan is None:
                await own.apply(ApplyRequest(plan(release), by="test"))
        return opened

    return client


def session_on(link: Link, workdir: Path) -> Session:
    return Session(
        lambda: contextlib.nullcontext(link), client_for(workdir), run="not known yet", host_label="loopback", by="ana"
    )


@contextlib.asynccontextmanager
async def following(server: LoopbackServer, workdir: Path) -> AsyncIterator[Following]:
    async with Link(server.endpoint) as link:
        it = Following(session_on(link, workdir), link, workdir)
        task = asyncio.create_task(it.session.run(it.note))
        try:
            yield it
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_it_follows_acts_and_fetches(loopback: LoopbackServer, workdir: Path) -> None:
    async with following(loopback, workdir) as it:
        with pytest.raises(ControlError):
            await it.session.detail("prep:B5")
        seen = await it.state("prep:B5", JobState.RUNNING)
        assert seen.run == "test run"
        assert seen.link.state == "live"
        await it.state("prep:B6", JobState.FAILED)
        assert (await it.session.log("prep:B5", 1, -1000, 1000)).data == b"first line of [rank0]\n"
        assert (await it.session.search("prep:B5", 1, "rank0", 0, 10)).offsets == (0,)
        assert (await it.session.detail("prep:B5")).spec.name == "prep:B5"
        assert (await it.session.history("", "memory_used", 10)).figure == "memory_used"
        reply = await it.session.act("stop", "prep:B5")
        assert reply.done, reply.text
        seen = await it.state("prep:B5", JobState.STOPPED)
        assert any(event.by == "ana" for event in seen.events)
        assert (await it.session.restart_crashed()).done
        await it.until(lambda seen: seen.statuses["prep:B6"].attempt == 2)
        with pytest.raises(ControlError, match="no job"):
            await it.session.act("stop", "prep:none")


async def test_a_failed_need_is_the_reason_behind_it_until_it_is_waived(
    loopback: LoopbackServer, workdir: Path
) -> None:
    async with following(loopback, workdir) as it:
        seen = await it.state("prep:B6", JobState.FAILED)
        assert seen.plan is not None
        behind = JobSpec("export", "export", ("/bin/true",), needs=(Need("prep:B6"),))
        more = dataclasses.replace(seen.plan, jobs=(*seen.plan.jobs, behind))
        async with AgentClient(it.link, bridge_argv(str(workdir), PYTHON, more.release)) as agent:
            assert (await agent.apply(ApplyRequest(more, by="ana"))).applied
        waits = "waits for prep:B6, which failed"
        seen = await it.until(lambda seen: "export" in seen.statuses and seen.statuses["export"].reason == waits)
        assert "export" in report.status_text(seen) and waits in report.status_text(seen)
        assert f"`export` waiting: {waits}" in report.report_markdown(seen)
        assert (
            "prep:B6 failed: exit code 7, cause unknown · 1 job waits for it" in attention(seen, time.monotonic()).text
        )
        assert (await it.session.waive("prep:B6", "no licence")).done
        seen = await it.state("export", JobState.DONE)
        assert "waived, the others go on without it: no licence" in report.report_markdown(seen)
        assert "waived: no licence · exit code 7" in report.status_text(seen)
        assert any("prep:B6 waived: no licence" in event.text and event.by == "ana" for event in seen.events)


async def test_an_agent_that_was_killed_is_followed_again_without_a_gap(
    loopback: LoopbackServer, workdir: Path
) -> None:
    async with following(loopback, workdir) as it:
        first = await it.state("prep:B5", JobState.RUNNING)
        pid = first.statuses["prep:B5"].pid
        os.kill(agent_pid(first), signal.SIGKILL)
        seen = await it.until(lambda seen: agent_pid(seen) != agent_pid(first))
        assert seen.statuses["prep:B5"].pid == pid
        numbers = sorted(event.seq for event in seen.events)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_keeper_that_does_not_come_back_at_once_is_seen_to_be_missing(
    loopback: LoopbackServer, workdir: Path
) -> None:
    async with following(loopback, workdir) as it:
        await it.state("prep:B6", JobState.FAILED)
        for _ in range(2):
            keeper = locks.holder(str(Path(runtime_dir(workdir)) / "keeper.lock"))
            assert keeper is not None and send(keeper, signal.SIGKILL)
            await it.until(partial(told, f"keeper {keeper.pid} has ended; another one is being started"))
            await it.until(lambda seen: seen.events[0].text.endswith("is there"))
            await it.until(lambda seen: seen.agent is not None and seen.agent.keeper)


async def test_agent_and_keeper_killed_at_once_are_said_and_brought_back(
    loopback: LoopbackServer, workdir: Path
) -> None:
    async with following(loopback, workdir) as it:
        first = await it.state("prep:B5", JobState.RUNNING)
        runtime = Path(runtime_dir(workdir))
        # Held first, so that neither has time to bring the other back.
        found = [locks.holder(str(runtime / f"{name}.lock")) for name in ("keeper", "agent")]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                assert process is not None and send(process, number)
        seen = await it.until(lambda seen: bool(seen.link.detail))
        assert seen.link.state == "live" and not seen.stale(time.monotonic())
        assert attention(seen, time.monotonic()).text.startswith("the agent on loopback does not answer: ")
        seen = await it.until(lambda seen: agent_pid(seen) != agent_pid(first) and not seen.link.detail)
        assert seen.statuses["prep:B5"].pid == first.statuses["prep:B5"].pid
        assert attention(seen, time.monotonic()).text.startswith("1 needs you: prep:B6 failed")


async def test_events_too_old_to_be_caught_up_with_are_said_to_be_missing(
    loopback: LoopbackServer, workdir: Path
) -> None:
    async with following(loopback, workdir) as it:
        first = await it.state("prep:B6", JobState.FAILED)
        runtime = Path(runtime_dir(workdir))
        found = [locks.holder(str(runtime / f"{name}.lock")) for name in ("keeper", "agent")]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                assert process is not None and send(process, number)
        await it.until(lambda seen: bool(seen.link.detail))
        store = Store(Path(journal_path(workdir)))
        status = dataclasses.replace(store.jobs()["prep:B6"].status, reason="seen in between")
        with store.transaction():
            store.add_event(Event(0, time.time(), "state", "in between", "prep:B6", status=status))
            for at in range(3000):
                store.add_event(Event(0, time.time(), "host", f"happening {at}"))
        while store.prune(kept=100):
            pass
        store.close()
        seen = await it.until(lambda seen: bool(seen.gaps))
        assert seen.statuses["prep:B6"].reason == "seen in between"  # the newest of each job is there
        assert seen.gaps[0].pruned == 2900 and seen.seq - first.seq == seen.gaps[0].events + 2900
        assert seen.agent is not None and first.agent is not None and seen.agent.pid != first.agent.pid


async def test_a_new_journal_is_read_from_its_beginning(loopback: LoopbackServer, workdir: Path) -> None:
    async with following(loopback, workdir) as it:
        first = await it.state("prep:B6", JobState.FAILED)
        request = ActionRequest(by="test", request="end it")
        async with AgentClient(
            it.link, bridge_argv(str(workdir), PYTHON, first.agent.release if first.agent else "")
        ) as own:
            await own.shutdown(request, stop_jobs=True)
        await it.until(lambda seen: bool(seen.link.detail))
        shutil.rmtree(workdir / "agent")
        shutil.rmtree(workdir / "jobs")
        seen = await it.until(lambda seen: seen.seq > 0 and seen.agent != first.agent and not seen.link.detail)
        assert seen.plan is not None
        assert len({event.seq for event in seen.events}) == len(seen.events)
        await it.state("prep:B5", JobState.RUNNING)


async def test_what_is_wrong_on_the_host_waits_for_the_operator(loopback: LoopbackServer, workdir: Path) -> None:
    tries = 0

    async with Link(loopback.endpoint) as link:

        async def client(live: Link) -> AgentClient:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise DeployError("no python3.11 on the host: name one as host.python")
            return await client_for(workdir)(live)

        session = Session(lambda: contextlib.nullcontext(link), client, run="r", host_label="loopback", by="ana")
        it = Following(session, link, workdir)
        task = asyncio.create_task(session.run(it.note))
        seen = await it.until(lambda seen: seen.link.state == "refused")
        assert seen.link.detail == "no python3.11 on the host: name one as host.python"
        assert tries == 1
        session.retry()
        await it.state("prep:B5", JobState.RUNNING)
        assert it.session.snapshot.link.state == "live"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_console_on_a_real_agent(loopback: LoopbackServer, workdir: Path) -> None:
    async with Link(loopback.endpoint) as link:
        app = Deck(session_on(link, workdir))
        async with app.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: app.snapshot.plan is not None, 40.0)
            await until_shown(pilot, "1 needs you: prep:B6 failed")
            await pilot.press("n", "r")
            await until(pilot, lambda: app.snapshot.statuses["prep:B6"].attempt == 2, 20.0)
            await pilot.press("k", "l")
            await until_shown(pilot, "first line of [rank0]")
            await pilot.press("escape", "enter")
            await until_shown(pilot, "exec sleep 600")


async def test_a_new_host_key_waits_for_the_operator(loopback: LoopbackServer, workdir: Path, tmp_path: Path) -> None:
    endpoint = dataclasses.replace(loopback.endpoint, known_hosts=tmp_path / "known")
    async with Link(endpoint) as link:
        session = session_on(link, workdir)
        async with asyncio.timeout(30):
            seen = await headless.follow(session)  # ends: only a person can help
        assert seen.link.state == "refused"
        assert seen.link.host_key in seen.link.detail
        it = Following(session, link, workdir)
        task = asyncio.create_task(session.run(it.note))
        session.retry(seen.link.host_key)
        seen = await it.state("prep:B5", JobState.RUNNING)
        assert seen.link.host_key == ""
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_look_says_that_the_link_is_live(
    loopback: LoopbackServer, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with following(loopback, workdir) as it:
        await it.state("prep:B6", JobState.FAILED)
    config = config_for(loopback, workdir, tmp_path)
    assert await commands.status(Host(config), as_json=True) == report.CRASHED
    found = json.loads(capsys.readouterr().out)
    assert found["link"]["state"] == "live"
    assert found["attention"]["text"].startswith("1 needs you: prep:B6 failed")
    assert 0 <= found["link"]["for_s"] < 60


async def test_a_test_message_goes_where_the_config_says(
    loopback: LoopbackServer, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(loopback, workdir, tmp_path)
    config.write_text(config.read_text() + '\n[notify]\nwebhook = "HOOK"\nheartbeat = "BEAT"\n')
    async with receiver() as there, following(loopback, workdir) as it:
        await it.state("prep:B6", JobState.FAILED)
        assert await commands.notify_test(Host(config)) == commands.TROUBLE
        assert "webhook: secret HOOK is not set here: draftdeck secret set HOOK" in capsys.readouterr().err
        for name in ("HOOK", "BEAT"):
            write_secret(runtime_dir(workdir), name, there.url(f"/{name}-4711"))
        assert await commands.notify_test(Host(config)) == commands.WELL
        assert capsys.readouterr().out == "webhook (json): 200 OK\nheartbeat: 200 OK\n"
        assert [asked.target for asked in there.asked] == ["/HOOK-4711", "/BEAT-4711"]
        await commands.apply(Host(config), dry_run=True, confirm=())
        assert "notify.webhook           live\n" in capsys.readouterr().out


def test_the_screen_waits_for_nothing_that_connects() -> None:
    script = "import sys, console.cli, console.tui.app; print([n for n in ('asyncssh', 'httpx') if n in sys.modules])"
    assert subprocess.run([PYTHON, "-c", script], capture_output=True, check=True).stdout == b"[]\n"


async def test_the_console_of_the_command_connects_after_its_first_picture(
    loopback: LoopbackServer, workdir: Path, tmp_path: Path
) -> None:
    config = load(config_for(loopback, workdir, tmp_path))
    host = Host(tmp_path / "config.toml", read_only=True)
    app = Deck(watching.session_on(config, lambda: watching.open_link(config, host), read_only=True), read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "connecting to 127.0.0.1")
        await until_shown(pilot, "nothing runs in")
        await pilot.press("c")
        await until_shown(pilot, "nothing runs in")
