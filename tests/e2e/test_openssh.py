"""The run over a real OpenSSH server, with SIGKILLs on the way: to a prep, to the agent, three times to generate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from console import host as hosts
from console.client import AgentClient
from console.config import Config, parse
from console.demo_config import SOURCES, demo_config
from console.headless import settled
from console.session import Session
from console.view import Snapshot
from pipeline.agent.attempts import identity
from pipeline.protocol import JobState
from tests.e2e.answers import answered, check_run
from tests.sshd import OpenSshServer, openssh_server
from tests.waiting import free_port

__all__ = ["openssh_server"]

SIZE = 3


def make_config(server: OpenSshServer, folder: Path, model: Path) -> Config:
    sources = folder / "sources"
    argv = [sys.executable, "-m", "pipeline.demo.datasets", "--out", str(sources), "--size", str(SIZE)]
    subprocess.run(argv, check=True, capture_output=True)
    text = demo_config(
        port=server.port,
        user=server.user,
        key=str(server.key),
        known_hosts=str(server.known_hosts),
        workdir=str(folder / "work"),
        python=sys.executable,
        model_dir=str(model),
        sources={name: str(sources / name) for name in SOURCES},
        size=SIZE,
        server_port=free_port(),
    )
    return parse(text.encode(), "config.toml")


class Watch:
    """A console without a screen on a run: waits for conditions of its snapshots, and kills processes."""

    def __init__(self, session: Session, client: AgentClient) -> None:
        self.session = session
        self.client = client
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(session.run(lambda _: self._changed.set()))

    async def until(self, holds: Callable[[Snapshot], bool], what: str, within: float = 60.0) -> Snapshot:
        deadline = time.monotonic() + within
        while not holds(self.session.snapshot):
            assert time.monotonic() < deadline, (
                f"waited {within} s in vain for {what}: {self.session.snapshot.statuses}"
            )
            assert not self._task.done()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.2)
            self._changed.clear()
        return self.session.snapshot

    async def state(self, job: str, *states: JobState, within: float = 60.0) -> None:
        await self.until(
            lambda seen: job in seen.statuses and seen.statuses[job].state in states, f"{job} {states}", within
        )

    def attempt(self, job: str) -> int:
        return self.session.snapshot.statuses[job].attempt

    def kill(self, job: str) -> None:
        pid = self.session.snapshot.statuses[job].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def watching(config: Config) -> AsyncIterator[Watch]:
    """Apply the config's plan and watch it; at the end its jobs and agent are stopped."""
    async with hosts.connected(config) as link:
        place = await hosts.deployed(link, config)
        reply = await hosts.apply(place)
        assert reply.applied, reply.refused

        async def client(_: object) -> AgentClient:
            return AgentClient(link, place.bridge)

        async with AgentClient(link, place.bridge) as own:
            watch = Watch(
                Session(lambda: contextlib.nullcontext(link), client, run="demo", host_label="test", by="test"), own
            )
            try:
                yield watch
            finally:
                await watch.close()
                await own.shutdown(hosts.request(), stop_jobs=True)


async def kill_generate_after(watch: Watch, workdir: Path, more: int) -> None:
    """SIGKILL generate when it has stored ``more`` answers beyond those that are there now, and see it come back."""
    await watch.state("generate", JobState.RUNNING)
    attempt, wanted = watch.attempt("generate"), answered(workdir).total() + more
    await watch.until(lambda _: answered(workdir).total() >= wanted, f"{wanted} answers", within=120)
    watch.kill("generate")
    await watch.until(lambda _: watch.attempt("generate") == attempt + 1, "a new attempt")


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_run_survives_sigkills_with_every_prompt_answered_once(
    openssh_server: OpenSshServer, tmp_path: Path, model: Path
) -> None:
    config = make_config(openssh_server, tmp_path, model)
    workdir = tmp_path / "work"
    async with watching(config) as watch:
        await watch.state("prep:B2", JobState.RUNNING)
        watch.kill("prep:B2")
        await watch.state("prep:B2", JobState.FAILED, within=10)
        diagnosis = watch.session.snapshot.statuses["prep:B2"].diagnosis
        assert diagnosis is not None
        assert diagnosis.cause == "sigkill"
        reply = await watch.session.act("restart", "prep:B2")
        assert reply.done, reply.text
        # An attempt that has not begun when the agent dies is given up, and the next one has another number.
        await watch.until(
            lambda seen: (
                seen.statuses["prep:B2"].attempt == 2
                and seen.statuses["prep:B2"].state in (JobState.RUNNING, JobState.DONE)
            ),
            "prep:B2 running again",
        )

        await watch.state("serve:baseline", JobState.RUNNING, JobState.READY)
        server = watch.session.snapshot.statuses["serve:baseline"].pid
        assert server is not None
        before = identity.identify(server)
        assert before is not None
        agent = watch.session.snapshot.agent
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)
        await watch.until(lambda seen: seen.agent is not None and seen.agent.pid != agent.pid, "a new agent")
        await watch.state("serve:baseline", JobState.READY, within=120)
        assert identity.alive(before)
        assert watch.attempt("serve:baseline") == 1

        await watch.state("prep:B2", JobState.DONE)
        for more in (2, 3, 4):
            await kill_generate_after(watch, workdir, more)

        last = await watch.until(
            lambda seen: seen.plan is not None and settled(seen.plan, seen.statuses), "the end of the run", within=200
        )
        assert {name: status.state for name, status in last.statuses.items() if status.state is not JobState.DONE} == {
            "serve:baseline": JobState.READY
        }
        expected = dict.fromkeys(last.statuses, 1) | {"prep:B2": 2, "generate": 4}
        assert {name: status.attempt for name, status in last.statuses.items()} == expected
    check_run(workdir, SIZE)
