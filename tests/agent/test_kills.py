"""The agent killed at any instant, with no console connected: nothing is lost, doubled or misreported."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import sqlite3
import termios
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from pipeline.agent import paths
from pipeline.agent.attempts.identity import Process, alive, send
from pipeline.agent.attempts.records import claimed, read_claim, read_exit, read_started
from pipeline.protocol import JobDetail, JobState, RestartPolicy
from tests.agent.attempts.test_stopping import hold_prepare, spare
from tests.agent.boxes import box
from tests.agent.rig import Rig, exists, shell, touch, until

S = JobState
NAMES = ("j0", "j1", "j2", "j3")
CHURNING = RestartPolicy(when="always", limit=1_000_000, backoff_s=0.01, backoff_max_s=0.01, healthy_s=0.0)


def churn(rig: Rig) -> str:
    """A script that notes its attempt and the code it will end with; two of one job at once are noted too."""
    return f"""
    folder=${{DRAFTDECK_PROGRESS%/*}}; attempt=${{folder##*/}}; job=${{folder%/*}}; job=${{job##*/}}
    exec 9>>{rig.workdir}/lock.$job
    flock -n 9 || echo "$job $attempt" >> {rig.workdir}/doubled
    code=$((attempt % 7 + 10))
    echo "$attempt $code" >> {rig.workdir}/ran.$job
    sleep 0.$((attempt * 37 % 5))5
    exit $code
    """


def ran(rig: Rig, name: str) -> dict[int, int]:
    """The attempts of a job that ran and their exit codes, as the job itself wrote them; each must be there once."""
    lines = [line.split() for line in (rig.workdir / f"ran.{name}").read_text().splitlines()]
    assert len({line[0] for line in lines}) == len(lines), f"an attempt of {name} ran twice"
    return {int(attempt): int(code) for attempt, code in lines}


async def detail(rig: Rig, name: str) -> JobDetail:
    answer = await rig.client.get(f"/v1/jobs/{name}")
    return msgspec.json.decode(answer.content, type=JobDetail)


@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
async def test_killed_at_random_instants_while_jobs_start_and_end(agent: Rig, kills: int) -> None:
    chance = random.Random(kills)
    await agent.apply(*(shell(name, churn(agent), restart=CHURNING) for name in NAMES))
    away: list[float] = []
    for turn in range(kills):
        await asyncio.sleep(chance.random() * 0.5)
        old = agent.holder("agent")
        assert old is not None
        killed = time.monotonic()
        send(old, signal.SIGKILL)
        await agent.replaced("agent", old)
        await answering(agent)
        away.append(time.monotonic() - killed)
        if turn % 5 == 4:  # the other of the two
            keeper = agent.holder("keeper")
            assert keeper is not None
            send(keeper, signal.SIGKILL)
            await agent.replaced("keeper", keeper)
    print(f"a new agent answered after {sorted(away)[len(away) // 2]:.2f} s (median), {max(away):.2f} s at most")
    await agent.post("/v1/shutdown?jobs=stop")
    await until(lambda: agent.holder("agent") is None)
    await agent.start()
    assert not exists(agent.workdir / "doubled")
    for name in NAMES:
        assert (await agent.status(name)).state is S.STOPPED
        truth, found = ran(agent, name), await detail(agent, name)
        assert [attempt.number for attempt in found.attempts] == list(range(1, len(found.attempts) + 1))
        assert len(truth) >= 5
        for attempt in found.attempts:
            claim = read_claim(agent.folder(name, attempt.number))
            assert attempt.ended_at is not None
            if attempt.state == "abandoned":
                assert attempt.number not in truth and claim is not None and claim.owner == "abandoned"
            elif attempt.number in truth and attempt.state != S.STOPPED:
                assert attempt.exit_code == truth[attempt.number], attempt
            # Only the last was asked to end; one that was cut off before its shell came so far did not run.
            assert attempt.state in ("abandoned", S.FAILED) or attempt is found.attempts[-1], attempt


async def answering(rig: Rig) -> None:
    async def look() -> bool:
        try:
            return (await rig.client.get("/v1/state")).status_code == 200
        except httpx.TransportError:
            return False

    await until(look, what="an agent that answers")


async def replaced(rig: Rig, old: Process) -> None:
    send(old, signal.SIGKILL)
    await rig.replaced("agent", old)
    await answering(rig)


def running(rig: Rig) -> Process:
    found = rig.holder("agent")
    assert found is not None
    return found


async def test_killed_between_the_journal_and_the_shim(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_prepare(rig, monkeypatch)
    await rig.start()
    await rig.apply(shell("a", "echo ran >> ran; exec sleep 1000"))
    assert (await rig.reach("a", S.STARTING)).attempt == 1
    await replaced(rig, running(rig))
    touch(go)
    status = await rig.attempted("a", 2)
    status = await rig.reach("a", S.RUNNING)
    assert status.restarts == 0
    await until(lambda: exists(rig.workdir / "ran"))
    assert (rig.workdir / "ran").read_text() == "ran\n"
    owner = read_claim(rig.folder("a", 1))
    assert owner is not None and owner.owner == "abandoned" and not exists(rig.folder("a", 1) / "started.json")
    assert (await detail(rig, "a")).attempts[0].state == "abandoned"


@pytest.mark.parametrize("first", ["agent", "shim"])
async def test_killed_between_the_shim_and_its_claim(agent: Rig, first: str) -> None:
    """The shim is held before its claim; then the new agent claims first, or the shim does."""
    shim = await until(lambda: spare(agent))
    os.kill(shim.pid, signal.SIGSTOP)
    keeper, old = agent.holder("keeper"), running(agent)
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGSTOP)
    await agent.apply(shell("a", "echo ran >> ran; exec sleep 1000"))
    await agent.reach("a", S.STARTING)
    await until(lambda: exists(agent.folder("a") / "spec.json"))
    await given(shim)
    send(old, signal.SIGKILL)
    await until(lambda: not alive(old))
    assert not claimed(agent.folder("a"))
    if first == "shim":
        os.kill(shim.pid, signal.SIGCONT)
        await until(lambda: read_started(agent.folder("a")))
    os.kill(keeper.pid, signal.SIGCONT)
    await agent.replaced("agent", old)
    status = await agent.attempted("a", 2 if first == "agent" else 1)
    status = await agent.reach("a", S.RUNNING)
    if first == "agent":
        os.kill(shim.pid, signal.SIGCONT)
        await until(lambda: not alive(shim))
    assert (await agent.reach("a", S.RUNNING)).attempt == status.attempt
    await until(lambda: exists(agent.workdir / "ran"))
    assert (agent.workdir / "ran").read_text() == "ran\n" and alive(shim) is (first == "shim")


async def given(shim: Process) -> None:
    """Wait until the shim's attempt lies in the pipe that it reads from."""
    pipe = Path(f"/proc/{shim.pid}/fd/0")

    def filled() -> bool:
        handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            count = fcntl.ioctl(handle, termios.FIONREAD, b"\0\0\0\0")
        finally:
            os.close(handle)
        return int.from_bytes(count, "little") > 0

    await until(filled, what="the attempt in the shim's pipe")


async def test_killed_while_it_concludes(agent: Rig) -> None:
    """The journal is held by somebody else, so that the end of the job is seen but cannot be written."""
    await agent.apply(shell("a", "while [ ! -e go ]; do sleep 0.02; done; exit 4"), shell("b", "exec sleep 1000"))
    for name in "ab":
        await agent.reach(name, S.RUNNING)
    seq, old = (await agent.state()).seq, running(agent)
    journal = sqlite3.connect(paths.journal_path(agent.workdir), isolation_level=None)
    journal.execute("BEGIN IMMEDIATE")
    touch(agent.workdir / "go")
    await agent.recorded("a")

    async def waits() -> bool:
        try:
            await agent.client.get("/v1/jobs/a", timeout=0.5)  # this is read from the journal, the state is not
        except httpx.TimeoutException:
            return True
        return False

    # The history of figures may wait for the journal first, for ten seconds, and what judges the end behind it.
    await until(waits, within=60, what="the agent to wait for the journal")
    send(old, signal.SIGKILL)
    await until(lambda: not alive(old))
    journal.rollback()
    journal.close()
    await agent.replaced("agent", old)
    status = await agent.reach("a", S.FAILED)
    assert (status.attempt, status.exit_code) == (1, 4)
    events = [event for event in (await agent.state()).events if event.seq > seq and event.job == "a"]
    assert [event.status.state for event in events if event.status] == [S.FAILED]
    assert (await agent.status("b")).state is S.RUNNING


async def test_killed_by_the_kernel_for_memory(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    before = await agent.reach("a", S.RUNNING)
    old = running(agent)
    with box() as folder:
        (folder / "cgroup.procs").write_text(str(old.pid))
        (folder / "memory.limit_in_bytes").write_text("64K")

        async def gone() -> bool:
            with contextlib.suppress(httpx.TransportError):
                await agent.client.get("/v1/state", timeout=1)
            return not alive(old)

        await until(gone, what="the end of the agent")
        counted = dict(line.split() for line in (folder / "memory.oom_control").read_text().splitlines())
    assert int(counted["oom_kill"]) >= 1
    await agent.replaced("agent", old)
    await answering(agent)
    assert await agent.reach("a", S.RUNNING) == before
    os.kill(before.pid or 0, signal.SIGTERM)
    record = await agent.recorded("a")
    assert record == read_exit(agent.folder("a")) and (await agent.reach("a", S.FAILED)).signal == signal.SIGTERM
