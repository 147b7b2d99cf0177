"""What random walks of the ``machine`` ran into once, each by the shortest way there."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pipeline.agent import paths
from pipeline.agent.attempts.identity import send
from pipeline.protocol import JobSpec, JobState, RestartPolicy
from tests.agent.rig import Rig, shell, until


def crashes_once(rig: Rig, name: str) -> JobSpec:
    """A job that fails at first, then runs, and takes its time to end once it is ``settled``."""
    script = f"trap '' TERM; mkdir {rig.workdir}/tried && exit 7; touch {rig.workdir}/settled; sleep 1000"
    return shell(name, script, restart=RestartPolicy(limit=2), stop_grace_s=0.5)


async def settled(rig: Rig) -> None:
    """The second attempt runs and pays no heed to TERM."""
    await rig.attempted("a", 2)
    await until(Path(rig.workdir, "settled").exists)


async def test_a_plan_that_restarts_a_job_forgets_its_restarts(agent: Rig) -> None:
    spec = crashes_once(agent, "a")
    await agent.apply(spec)
    await agent.attempted("a", 2)
    assert (await agent.reach("a", JobState.RUNNING)).restarts == 1
    await agent.apply(replace(spec, content_hash="other"))
    await agent.attempted("a", 3)
    assert (await agent.reach("a", JobState.RUNNING)).restarts == 0


async def test_a_job_started_while_it_is_being_stopped_begins_with_no_restarts(agent: Rig) -> None:
    await agent.apply(crashes_once(agent, "a"))
    await settled(agent)
    assert (await agent.reach("a", JobState.RUNNING)).restarts == 1
    await agent.act("a", "stop")
    assert (await agent.status("a")).state is JobState.STOPPING
    await agent.act("a", "start")
    await agent.attempted("a", 3)
    assert (await agent.reach("a", JobState.RUNNING)).restarts == 0


async def test_a_job_that_comes_back_into_the_plan_before_it_has_ended_starts_by_itself_only_if_it_may(
    agent: Rig,
) -> None:
    by_hand, other = replace(crashes_once(agent, "a"), autostart=False), shell("b", "true")
    await agent.apply(by_hand, other)
    await agent.act("a", "start")
    await settled(agent)
    await agent.apply(other)
    assert (await agent.status("a")).state is JobState.STOPPING
    await agent.apply(by_hand, other)
    assert (await agent.reach("a", JobState.STOPPED)).restarts == 0
    await agent.act("b", "restart")
    await agent.attempted("b", 2)
    assert (await agent.status("a")).attempt == 2


async def test_what_comes_after_somebody_has_read_the_journal_by_hand_is_kept(agent: Rig) -> None:
    look = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM jobs'); db.close()"
    argv = [sys.executable, "-c", look, paths.journal_path(agent.workdir)]
    await asyncio.to_thread(subprocess.run, argv, check=True)
    await agent.apply(shell("a", "sleep 1000"))
    await agent.reach("a", JobState.RUNNING)
    old = agent.holder("agent")
    assert old is not None
    send(old, signal.SIGKILL)
    await agent.replaced("agent", old)
    assert (await agent.reach("a", JobState.RUNNING)).attempt == 1
