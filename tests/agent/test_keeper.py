"""The keeper: a release that does not start, and both processes gone at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest

from pipeline.agent import paths
from pipeline.agent.attempts.identity import Process, alive, send
from pipeline.protocol import ActionRequest, Event, JobState
from tests.agent.rig import RELEASE, ROOT, Rig, shell, until

S = JobState
RAISE = "\nraise ImportError('a broken release')\n"


async def dead(*processes: Process | None) -> None:
    """Kill processes at once: all are held first, so that none has time to bring another back."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            assert process is not None and send(process, number)
    await until(lambda: not any(process is not None and alive(process) for process in processes))


def make_release(rig: Rig, name: str, where: str) -> Path:
    """A copy of this release with an error in one of its files; that file."""
    folder = Path(paths.release_dir(rig.workdir, name))
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    broken = folder / "pipeline" / where
    broken.write_text(broken.read_text() + RAISE)
    return broken


def said(rig: Rig, kind: str = "agent") -> list[str]:
    """What the journal says of agent and keeper, agent or not."""
    with contextlib.closing(sqlite3.connect(paths.journal_path(rig.workdir))) as journal:
        rows = journal.execute("SELECT body FROM events ORDER BY seq").fetchall()
    events = [msgspec.json.decode(row[0], type=Event) for row in rows]
    return [event.text for event in events if event.kind == kind]


def told(rig: Rig, text: str) -> bool:
    return text in said(rig)


async def test_a_new_agent_says_how_the_one_before_it_ended(rig: Rig) -> None:
    first = await rig.start()
    old = rig.holder("agent")
    assert old is not None and send(old, signal.SIGKILL)
    second = (await rig.replaced("agent", old)).pid
    await until(lambda: len(said(rig)) == 2, what=rig.log())
    assert said(rig) == [
        f"agent {first} of release {RELEASE} is there",
        f"agent {second} of release {RELEASE} is there; agent {first} before it ended with signal 9",
    ]
    # Both at once: nobody saw it.
    await dead(rig.holder("keeper"), rig.holder("agent"))
    third = await rig.start()
    await until(lambda: len(said(rig)) == 3)
    assert said(rig)[2].endswith(f"; agent {second} before it ended, nobody saw how")
    # One that was told to leave has no word said of it.
    await asyncio.to_thread(rig.call, "stop")
    fourth = await rig.start()
    await until(lambda: f"agent {fourth} of release {RELEASE} is there" in said(rig))
    assert third != fourth


async def test_a_keeper_that_died_is_said_and_so_is_the_next(agent: Rig) -> None:
    for _ in range(2):  # the second time within a second, which takes a little longer
        old = agent.holder("keeper")
        assert old is not None and send(old, signal.SIGKILL)
        new = await agent.replaced("keeper", old)
        await until(partial(told, agent, f"keeper {new.pid} is there"), what=f"keeper {new.pid}")
        assert f"keeper {old.pid} has ended; another one is being started" in said(agent)
    assert (await agent.state()).agent.keeper


@pytest.mark.parametrize("where", ["__init__.py", "agent/__init__.py", "agent/supervisor.py"])
async def test_a_broken_release_is_said_tried_ever_more_seldom_and_taken_when_repaired(agent: Rig, where: str) -> None:
    """The current release raises at import; in the package itself it takes the keeper's new code with it."""
    await agent.apply(shell("a", "exec sleep 1000"))
    before = await agent.reach("a", S.RUNNING)
    old, keeper = agent.holder("agent"), agent.holder("keeper")
    assert old is not None and keeper is not None
    broken = make_release(agent, "rel2", where)
    paths.set_current_release(agent.workdir, "rel2")
    send(old, signal.SIGKILL)
    log = agent.runtime / "keeper.log"
    await until(lambda: "the next one starts in 1.6 s" in log.read_text(), what=log.read_text())
    said = log.read_text()
    assert said.index("in 0.4 s") < said.index("in 0.8 s") < said.index("in 1.6 s")
    assert "its log ends with: ImportError: a broken release" in said
    assert agent.holder("keeper") == keeper and agent.holder("agent") is None
    broken.write_text(broken.read_text().removesuffix(RAISE))
    await agent.replaced("agent", old, within=30)
    status = await agent.reach("a", S.RUNNING)
    assert status == before
    assert (await agent.state()).agent.release == "rel2"


@pytest.mark.parametrize("text", [b"", b"\xff\xfe\0\n", b"no-such-release\n"])
async def test_where_no_release_is_named_the_agent_comes_back_from_the_last(agent: Rig, text: bytes) -> None:
    old = agent.holder("agent")
    assert old is not None
    (agent.workdir / "agent" / "current").write_bytes(text)
    send(old, signal.SIGKILL)
    await agent.replaced("agent", old)
    await until(lambda: agent.holder("keeper"))


async def test_an_upgrade_to_a_release_that_does_not_start_is_refused(agent: Rig) -> None:
    old = agent.holder("agent")
    broken = make_release(agent, "rel2", "agent/supervisor.py")
    paths.set_current_release(agent.workdir, "rel2")  # as a deploy does before it asks
    body = msgspec.json.encode(ActionRequest("tester", "once"))
    answer = await agent.client.post("/v1/upgrade?release=rel2", content=body)
    assert answer.status_code == 422
    assert "release rel2 does not start, this agent stays: ImportError: a broken release" in answer.text
    assert paths.current_release(agent.workdir) == RELEASE and agent.holder("agent") == old
    broken.write_text(broken.read_text().removesuffix(RAISE))
    assert old is not None and (await agent.post("/v1/upgrade?release=rel2")).done
    await agent.replaced("agent", old)


async def test_an_agent_whose_current_release_is_broken_still_gets_a_keeper(agent: Rig) -> None:
    make_release(agent, "rel2", "__init__.py")
    paths.set_current_release(agent.workdir, "rel2")
    for _ in range(2):
        keeper = agent.holder("keeper")
        assert keeper is not None
        send(keeper, signal.SIGKILL)
        await agent.replaced("keeper", keeper)
    assert (await agent.state()).agent.keeper


async def test_agent_and_keeper_killed_at_once_come_back_by_the_start_script(agent: Rig) -> None:
    await asyncio.to_thread(agent.call, "start")  # which also writes the script
    await agent.apply(shell("a", "exec sleep 1000"))
    before = await agent.reach("a", S.RUNNING)
    await dead(agent.holder("keeper"), agent.holder("agent"))
    assert agent.holder("agent") is None and agent.holder("keeper") is None
    script = str(agent.workdir / "agent" / "start")
    environment = {"PATH": os.environ["PATH"], "HOME": "/", "SHELL": "/bin/sh"}
    starts = [
        asyncio.to_thread(subprocess.run, [script], env=environment, capture_output=True, timeout=60, check=True)
        for _ in range(3)
    ]
    answers = {done.stdout for done in await asyncio.gather(*starts)}
    assert len(answers) == 1
    assert await agent.status("a") == before
    await until(lambda: agent.holder("keeper"))
