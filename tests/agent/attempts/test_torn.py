"""Files of an attempt that are torn or untrue: nothing is started twice, and no stranger is signalled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.agent.attempts.identity import Process, alive, identify, send
from pipeline.agent.attempts.records import read_claim, read_started
from pipeline.protocol import JobState
from tests.agent.rig import Rig, exists, shell, touch, until

S = JobState


async def agent_away(rig: Rig) -> None:
    """Kill keeper and agent; jobs and shims go on."""
    for name in ("keeper", "agent"):
        process = rig.holder(name)
        assert process is not None
        send(process, signal.SIGKILL)
        await until(partial(_dead, process))


def _dead(process: Process) -> bool:
    return not alive(process)


async def begun(rig: Rig, script: str = "sleep 1000; :") -> tuple[Process, Process]:
    """Run job ``a``; its shim and its main process."""
    await rig.start()
    await rig.apply(shell("a", f"echo ran >> runs; {script}"))
    await rig.reach("a", S.RUNNING)
    await until(lambda: (rig.workdir / "runs").exists())
    claim, started = read_claim(rig.folder("a")), read_started(rig.folder("a"))
    assert claim is not None and started is not None
    return claim.process, started.process


async def looked_twice(rig: Rig) -> None:
    """Wait until the agent has told of two more looks at its jobs, so that what it would do wrong is done."""
    for _ in range(2):
        before = (await rig.state()).beat.host
        assert before is not None

        async def newer(at: float = before.at) -> bool:
            host = (await rig.state()).beat.host
            return host is not None and host.at > at

        await until(newer, what="a look")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


OTHERS = {"pipe": pipe, "link": link, "device": device, "folder": folder}
"""What a job may put in the place of a file."""


def torn(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how in OTHERS:
        path.unlink()
        OTHERS[how](path)
        return
    path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "garbage": b"\xff\x00{]" * 8}[how])


RARER = ("empty", "garbage", "link", "device", "folder")
TEARS = ["half", "pipe", *(pytest.param(how, marks=pytest.mark.long) for how in RARER)]


@pytest.mark.parametrize("how", TEARS)
@pytest.mark.parametrize("name", ["claim", "started.json"])
async def test_a_job_whose_claim_or_start_is_torn_is_adopted_and_stopped(rig: Rig, name: str, how: str) -> None:
    shim, main = await begun(rig)
    await agent_away(rig)
    torn(rig.folder("a") / name, how)
    pid = await rig.start()
    status = await rig.reach("a", S.RUNNING)
    await until(lambda: _pid(rig, main.pid), what="the job's process")
    assert (status.attempt, (rig.workdir / "runs").read_text()) == (1, "ran\n")
    assert alive(shim) and alive(main)
    await rig.act("a", "stop")
    status = await rig.reach("a", S.STOPPED)
    assert status.signal == signal.SIGTERM and not alive(main)
    assert (await rig.state()).agent.pid == pid and "Traceback" not in rig.log()


async def _pid(rig: Rig, pid: int) -> bool:
    return (await rig.status("a")).pid == pid


@pytest.mark.parametrize("names", [("claim",), ("started.json",), ("claim", "started.json")], ids="+".join)
async def test_a_job_without_shim_whose_files_are_torn_is_seen_to_its_end(rig: Rig, names: tuple[str, ...]) -> None:
    shim, main = await begun(rig)
    await agent_away(rig)
    send(shim, signal.SIGKILL)
    for name in names:
        torn(rig.folder("a") / name, "half")
    await rig.start()
    await until(lambda: _pid(rig, main.pid), what="the job's process")
    await looked_twice(rig)
    assert (await rig.status("a")).state is S.RUNNING and alive(main)
    assert (await rig.state()).beat.jobs["a"].processes >= 1
    send(main, signal.SIGKILL)
    status = await rig.reach("a", S.LOST)
    assert (status.attempt, status.exit_code, status.signal) == (1, None, None)
    assert (rig.workdir / "runs").read_text() == "ran\n" and "Traceback" not in rig.log()


@pytest.mark.parametrize("how", TEARS)
async def test_a_torn_exit_record_is_said(rig: Rig, how: str) -> None:
    _, main = await begun(rig)
    await agent_away(rig)
    send(main, signal.SIGTERM)
    await rig.recorded("a")
    torn(rig.folder("a") / "exit.json", how)
    pid = await rig.start()
    status = await rig.reach("a", S.LOST)
    assert status.diagnosis is not None and status.exit_code is None
    assert "its exit record cannot be read: exit.json was damaged" in status.diagnosis.evidence
    await looked_twice(rig)
    assert (await rig.state()).agent.pid == pid and "Traceback" not in rig.log()


@pytest.mark.parametrize("how", TEARS)
async def test_a_claim_that_was_never_whole_is_no_start(rig: Rig, how: str) -> None:
    """As its shim leaves it that is killed while it writes: nothing of the job has run."""
    shim, main = await begun(rig)
    await agent_away(rig)
    for process in (shim, main):
        send(process, signal.SIGKILL)
    (rig.folder("a") / "started.json").unlink()
    torn(rig.folder("a") / "claim", how)
    await rig.start()
    await rig.attempted("a", 2)
    assert (await rig.reach("a", S.RUNNING)).restarts == 0


@pytest.mark.parametrize("how", OTHERS)
async def test_what_a_job_puts_in_the_place_of_files_to_come_holds_nobody_up(rig: Rig, how: str) -> None:
    await begun(rig, script="while [ ! -e go ]; do sleep 0.02; done; exit 7")
    for name in (".exit.json", "exit.json", "grace", ".grace", "spec.json"):
        torn_folder = rig.folder("a")
        (torn_folder / name).unlink(missing_ok=True)
        OTHERS[how](torn_folder / name)
    await rig.apply(shell("a", "echo ran >> runs; while [ ! -e go ]; do sleep 0.02; done; exit 7", stop_grace_s=5.0))
    detail = await rig.client.get("/v1/jobs/a")
    assert detail.status_code == 200 and detail.json()["environment"] == {}
    touch(rig.workdir / "go")
    status = await rig.reach("a", S.FAILED)
    assert (status.exit_code, status.attempt) == (7, 1)
    assert (rig.workdir / "runs").read_text() == "ran\n" and "Traceback" not in rig.log()


@pytest.fixture
def innocent() -> Iterator[Process]:
    """A process that has nothing to do with us, in a session of its own with a child."""
    stranger = subprocess.Popen(["sh", "-c", "trap '' HUP; sleep 1000; :"], start_new_session=True)
    found = identify(stranger.pid)
    assert found is not None
    yield found
    ended = stranger.poll()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(stranger.pid, signal.SIGKILL)
    stranger.wait()
    assert ended is None, f"the stranger was ended: {ended}"


def forge(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("action", ["stop", "kill"])
async def test_a_recycled_pid_is_never_signalled(rig: Rig, innocent: Process, action: str) -> None:
    """The numbers of shim and job belong to somebody else by now, as after so many new processes."""
    shim, main = await begun(rig)
    await agent_away(rig)
    for process in (shim, main):
        send(process, signal.SIGKILL)
    for name in ("claim", "started.json"):
        forge(rig.folder("a") / name, pid=innocent.pid, start=innocent.start - 1)
    await rig.start()
    await rig.act("a", action)
    status = await rig.reach("a", S.LOST, S.STOPPED)
    assert status.exit_code is None
    assert alive(innocent)


def leaderless() -> tuple[int, Process]:
    """The number of a session whose first process has ended, and a process that lives in it."""
    leader = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!"], start_new_session=True, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    found = identify(int(leader.stdout.readline()))
    leader.stdout.close()
    leader.wait()
    assert found is not None
    return leader.pid, found


async def test_a_recycled_session_is_never_signalled(rig: Rig) -> None:
    """The number of the job's session belongs to a stranger's, whose first process has ended."""
    shim, main = await begun(rig)
    await agent_away(rig)
    for process in (shim, main):
        send(process, signal.SIGKILL)
    leader, stranger = leaderless()
    try:
        for name in ("claim", "started.json"):
            forge(rig.folder("a") / name, pid=leader, start=stranger.start - 1)
        await rig.start()
        await rig.reach("a", S.LOST)
        assert alive(stranger)
    finally:
        send(stranger, signal.SIGKILL)


@pytest.mark.parametrize("part", [0, 1, 2], ids=["boot", "namespace", "start of pid 1"])
async def test_a_pid_of_another_container_is_never_signalled(rig: Rig, innocent: Process, part: int) -> None:
    """Pid and start time fit, but they were written before the container was restarted."""
    shim, main = await begun(rig)
    await agent_away(rig)
    for process in (shim, main):
        send(process, signal.SIGKILL)
    claim = json.loads((rig.folder("a") / "claim").read_text())
    identity = claim["container"].split(":")
    identity[part] += "1"
    numbers = {"pid": innocent.pid, "start": innocent.start}
    forge(rig.folder("a") / "claim", container=":".join(identity), **numbers)
    forge(rig.folder("a") / "started.json", **numbers)
    await rig.start()
    status = await rig.reach("a", S.LOST)
    assert status.reason == ("host rebooted" if part == 0 else "container restarted")
    await rig.act("a", "kill")
    await looked_twice(rig)
    assert alive(innocent)


async def test_locks_that_name_a_stranger_are_not_believed(rig: Rig, innocent: Process) -> None:
    """A lock file that an earlier agent left, whose number belongs to somebody else now; and one that is torn."""
    await rig.start()
    await agent_away(rig)
    for name, text in (("agent", f"{innocent.pid} {innocent.start - 1} "), ("keeper", "12 ")):
        path = rig.runtime / f"{name}.lock"
        path.write_text(text + path.read_text().partition(" ")[2].partition(" ")[2])
    answer = await asyncio.to_thread(rig.call, "start")
    assert answer["ok"] and answer["pid"] != innocent.pid
    assert (await asyncio.to_thread(rig.call, "stop"))["ok"] and alive(innocent)
    assert not exists(rig.runtime / "agent.sock")
