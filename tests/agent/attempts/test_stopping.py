"""Stop, kill and restart at every moment of a job's life, and all that a job leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from pathlib import Path

import httpx
import msgspec
import pytest

from pipeline.agent.attempts.identity import Process, alive, identify, send
from pipeline.agent.attempts.records import claimed, read_claim, read_exit, read_started
from pipeline.protocol import ActionRequest, Event, JobState, Resources, RestartPolicy
from tests.agent.rig import Rig, exists, shell, survivors, touch, until

S = JobState
IGNORES_TERM = "trap '' TERM; while :; do sleep 0.05; done"


def hold_prepare(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A start waits for the login shell; this one answers once the file exists that comes back."""
    go = rig.workdir / "go"
    slow = rig.workdir / "slow-shell"
    slow.write_text(f'#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexec /bin/sh "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("SHELL", str(slow))
    return go


async def events(rig: Rig, kind: str) -> list[Event]:
    return [event for event in (await rig.state()).events if event.kind == kind]


# --- Stop during the start -------------------------------------------------------------------------------------------


async def test_stop_before_the_shim_is_spawned(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_prepare(rig, monkeypatch)
    await rig.start()
    await rig.apply(shell("a", "echo ran > ran"))
    await rig.reach("a", S.STARTING)
    await rig.act("a", "stop")
    assert (await rig.status("a")).state is S.STOPPING
    touch(go)
    status = await rig.reach("a", S.STOPPED)
    assert "tester" in status.reason and not claimed(rig.folder("a")) and not exists(rig.workdir / "ran")


async def test_stop_before_the_shim_is_spawned_outlives_the_agent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    go = hold_prepare(rig, monkeypatch)
    await rig.start()
    await rig.apply(shell("a", "echo ran > ran"))
    await rig.reach("a", S.STARTING)
    await rig.act("a", "stop")
    old = rig.holder("agent")
    assert old is not None
    send(old, signal.SIGKILL)
    await rig.replaced("agent", old)
    touch(go)
    status = await rig.reach("a", S.STOPPED)
    assert status.attempt == 1 and not exists(rig.workdir / "ran")
    owner = read_claim(rig.folder("a"))
    assert owner is not None and owner.owner == "abandoned"


async def test_stop_between_the_shim_and_its_claim(agent: Rig) -> None:
    """The shim that waits is held, so it neither claims nor ends when it is told to."""
    shim = await until(lambda: spare(agent))
    os.kill(shim.pid, signal.SIGSTOP)
    await agent.apply(shell("a", "echo ran > ran"))
    await agent.reach("a", S.STARTING)
    await agent.act("a", "stop")
    status = await agent.reach("a", S.STOPPED)
    assert "tester" in status.reason and not alive(shim)
    assert not claimed(agent.folder("a")) and not exists(agent.workdir / "ran")


def spare(rig: Rig) -> Process | None:
    for pid in survivors(rig.workdir):
        with contextlib.suppress(OSError):
            if b"\0--spare\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return identify(pid)
    return None


@pytest.mark.skipif(not exists("/proc/self/wchan"), reason="this kernel does not tell what a process waits for")
@pytest.mark.parametrize("action", ["stop", "kill"])
async def test_stop_between_the_claim_and_the_program(rig: Rig, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """The job's process hangs where it opens its log, as on a file system that does not answer."""
    go = hold_prepare(rig, monkeypatch)
    await rig.start()
    grace_s = 0.5 if action == "stop" else 60.0
    await rig.apply(shell("a", "echo ran > ran", stop_grace_s=grace_s))
    await until(lambda: rig.folder("a").is_dir())
    log = rig.folder("a") / "log"
    os.mkfifo(log)
    touch(go)
    started = await until(lambda: read_started(rig.folder("a")))
    await until(lambda: opens_its_log(started.process), what="the job's process at its log")
    log.unlink()  # or whoever reads the log would let it go on
    await rig.act("a", action)
    status = await rig.reach("a", S.STOPPED)
    assert status.signal == signal.SIGKILL and not alive(started.process) and not exists(rig.workdir / "ran")


def opens_its_log(process: Process) -> bool:
    """Whether it waits for the reader of a named pipe, as the kernel tells."""
    return Path(f"/proc/{process.pid}/wchan").read_text() == "wait_for_partner"


async def test_stop_at_many_moments_of_the_start(agent: Rig) -> None:
    await agent.apply(shell("a", "trap 'echo ended >> ended; exit 5' TERM; echo ran >> ran; sleep 1000 & wait"))
    for number in range(12):
        await asyncio.sleep(0.01 * number)
        await agent.act("a", "stop")
        status = await agent.reach("a", S.STOPPED)
        record = read_exit(agent.folder("a", status.attempt)) if status.attempt else None
        assert record is None or record.asked == "stop"
        started = read_started(agent.folder("a", status.attempt)) if status.attempt else None
        assert started is None or not alive(started.process)
        await agent.act("a", "start")
    await agent.act("a", "kill")
    await agent.reach("a", S.STOPPED)


# --- Stop, kill, restart of each other -------------------------------------------------------------------------------


async def test_kill_during_a_stop_does_not_wait_for_the_grace(agent: Rig) -> None:
    await agent.apply(shell("a", IGNORES_TERM, stop_grace_s=600.0))
    await agent.reach("a", S.RUNNING)
    await agent.act("a", "stop")
    assert (await agent.status("a")).state is S.STOPPING
    await agent.act("a", "kill")
    status = await agent.reach("a", S.STOPPED)
    assert status.signal == signal.SIGKILL


@pytest.mark.parametrize("action", ["restart", "start"])
async def test_what_is_being_stopped_starts_once_more_when_asked(agent: Rig, action: str) -> None:
    ended = agent.workdir / "ended"
    await agent.apply(shell("a", f"trap 'while [ ! -e {ended} ]; do sleep 0.02; done; exit 0' TERM; sleep 1000 & wait"))
    await agent.reach("a", S.RUNNING)
    await agent.act("a", "stop")
    await agent.act("a", action)
    await agent.act("a", action)
    assert (await agent.status("a")).state is S.STOPPING
    touch(ended)
    await agent.attempted("a", 2)
    assert (await agent.reach("a", S.RUNNING)).attempt == 2
    await agent.act("a", "kill")
    assert (await agent.reach("a", S.STOPPED)).attempt == 2


@pytest.mark.parametrize(("action", "state", "attempt"), [("stop", S.STOPPED, 1), ("restart", S.RUNNING, 2)])
async def test_an_agent_killed_during_a_stop_or_restart_ends_it(
    agent: Rig, action: str, state: JobState, attempt: int
) -> None:
    await agent.apply(shell("a", f"echo ran >> ran; {IGNORES_TERM}", stop_grace_s=1.5))
    await agent.reach("a", S.RUNNING)
    await agent.act("a", action)
    old = agent.holder("agent")
    assert old is not None
    send(old, signal.SIGKILL)
    await agent.replaced("agent", old)
    status = await agent.attempted("a", attempt)
    status = await agent.reach("a", state)
    assert status.attempt == attempt
    await until(lambda: (agent.workdir / "ran").read_text() == "ran\n" * attempt)


async def test_stop_during_backoff(agent: Rig) -> None:
    await agent.apply(shell("a", "exit 1", restart=RestartPolicy(limit=9, backoff_s=600.0, backoff_max_s=600.0)))
    # The first restart is immediate, the second waits.
    await agent.attempted("a", 2)
    await agent.reach("a", S.BACKOFF)
    await agent.act("a", "stop")
    status = await agent.status("a")
    assert (status.state, status.attempt) == (S.STOPPED, 2) and "tester" in status.reason
    await agent.act("a", "start")
    await agent.attempted("a", 3)


async def test_backoff_goes_on_where_it_was_with_the_next_agent(agent: Rig) -> None:
    await agent.apply(shell("a", "exit 1", restart=RestartPolicy(limit=9, backoff_s=600.0, backoff_max_s=600.0)))
    await agent.attempted("a", 2)
    before = await agent.reach("a", S.BACKOFF)
    old = agent.holder("agent")
    assert old is not None
    send(old, signal.SIGKILL)
    await agent.replaced("agent", old)
    await agent.reach("a", S.BACKOFF)
    await agent.apply(
        shell("a", "exit 1", restart=RestartPolicy(limit=9, backoff_s=600.0, backoff_max_s=600.0)), shell("b", "true")
    )
    await agent.reach("b", S.DONE)  # the agent has decided who starts
    assert await agent.status("a") == before


async def test_stop_while_queued(agent: Rig) -> None:
    limit = (await agent.state()).beat.host.memory_limit  # type: ignore[union-attr]
    await agent.apply(shell("a", "echo ran > ran", resources=Resources(memory=2 * limit)))
    await agent.reach("a", S.QUEUED)
    await agent.act("a", "stop")
    status = await agent.status("a")
    assert (status.state, status.attempt) == (S.STOPPED, 0) and not exists(agent.workdir / "ran")


# --- What a job leaves behind ----------------------------------------------------------------------------------------

DAEMON = """
import os, sys, time, signal
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1000)
"""


def escapees(rig: Rig) -> str:
    """A script that leaves a child in a session of its own, a daemon, and one with an empty environment."""
    pids = rig.workdir / "pids"
    (rig.workdir / "daemon.py").write_text(DAEMON)
    daemon = f"{sys.executable} -I -S {rig.workdir}/daemon.py {pids}"
    return f"(setsid sleep 1000 & echo $! >> {pids}); {daemon}; env -i {daemon}; sleep 1000; :"


def left(rig: Rig) -> list[Process]:
    path = rig.workdir / "pids"
    found = [identify(int(pid)) for pid in path.read_text().split()] if path.exists() else []
    return [process for process in found if process is not None]


@pytest.mark.parametrize("shim", ["with its shim", "without its shim"])
async def test_stop_ends_daemons_and_sessions_and_says_so(agent: Rig, shim: str) -> None:
    await agent.apply(shell("a", escapees(agent), stop_grace_s=0.5))
    await agent.reach("a", S.RUNNING)
    await until(lambda: len(left(agent)) == 3)

    async def seen() -> bool:
        return (await agent.state()).beat.jobs["a"].processes >= 5

    await until(seen, what="a look that has seen all of them")
    away = left(agent)
    claim = read_claim(agent.folder("a"))
    assert claim is not None
    if shim == "without its shim":
        send(claim.process, signal.SIGKILL)
        await until(lambda: not alive(claim.process))
        assert all(alive(process) for process in away)
    await agent.act("a", "stop")
    status = await agent.reach("a", S.STOPPED)
    assert "tester" in status.reason
    assert not any(alive(process) for process in away)
    said = (await events(agent, "left"))[-1].text
    assert said.startswith("a: its main process left ") and "behind, ended: " in said
    assert any(str(process.pid) in said for process in away)


async def test_the_next_attempt_waits_until_the_tree_is_empty(agent: Rig) -> None:
    pids = agent.workdir / "pids"
    child = f"setsid sh -c 'echo $$ >> {pids}; {IGNORES_TERM.replace(chr(39), chr(34))}'"
    script = f"[ -e {pids} ] && exec sleep 1000; {child} & while [ ! -e {pids} ]; do sleep 0.01; done; exit 1"
    await agent.apply(shell("a", script, stop_grace_s=1.0, restart=RestartPolicy(limit=3)))
    await agent.attempted("a", 2)
    first = read_exit(agent.folder("a", 1))
    second = await until(lambda: read_started(agent.folder("a", 2)))
    assert first is not None and first.exit_code == 1 and len(first.left_over) >= 1
    assert first.tree_empty[1] - first.main_exited[1] >= 1.0
    assert second.monotonic >= first.tree_empty[1]
    assert not any(alive(process) for process in left(agent))
    assert (await events(agent, "left"))[-1].text.startswith("a: its main process left ")


async def test_a_killed_shim_is_restarted_as_the_policy_says(agent: Rig) -> None:
    await agent.apply(shell("a", "sleep 1000; :", restart=RestartPolicy(limit=3)))
    status = await agent.reach("a", S.RUNNING)
    claim = read_claim(agent.folder("a"))
    assert claim is not None and status.pid is not None
    send(claim.process, signal.SIGKILL)
    await until(lambda: not alive(claim.process))
    assert (await agent.status("a")).state is S.RUNNING
    os.kill(status.pid, signal.SIGKILL)
    await agent.attempted("a", 2)
    status = await agent.reach("a", S.RUNNING)
    assert status.restarts == 1
    lost = [event for event in (await agent.state()).events if event.status and event.status.state is S.BACKOFF]
    assert "its end was not seen" in lost[-1].text
    diagnosis = lost[-1].status.diagnosis if lost[-1].status else None
    assert diagnosis is not None and diagnosis.cause == "lost"


# --- Shutdown --------------------------------------------------------------------------------------------------------


async def test_a_shutdown_cut_off_by_sigkill_leaves_no_job_that_was_not_asked(agent: Rig) -> None:
    names = [f"j{number}" for number in range(8)]
    # TERM is ignored, so that none has ended by itself before the agent is killed.
    await agent.apply(*(shell(name, IGNORES_TERM, stop_grace_s=1.0) for name in names))
    for turn in range(4):
        for name in names:
            await agent.reach(name, S.RUNNING, within=60)
        old, seq = agent.holder("agent"), (await agent.state()).seq
        assert old is not None
        asked = asyncio.create_task(ask_to_shut_down(agent))
        await asyncio.sleep(0.012 * turn)
        if turn == 3:
            await agent.reach(names[0], S.STOPPING)
        send(old, signal.SIGKILL)
        await asked
        await agent.replaced("agent", old)
        await agent.reach(names[0], S.RUNNING, S.STOPPING, S.STOPPED)
        done = [event for event in (await agent.state()).events if event.seq > seq and event.kind == "action"]
        if not done:  # the agent died before it had decided anything
            assert {(await agent.status(name)).state for name in names} == {S.RUNNING}
            await agent.post("/v1/shutdown?jobs=stop")
            await until(lambda: agent.holder("agent") is None)
            await agent.start()
        for name in names:
            status = await agent.reach(name, S.STOPPED)
            assert "tester" in status.reason and status.attempt == turn + 1
        for name in names if turn < 3 else ():
            await agent.act(name, "start")


async def ask_to_shut_down(rig: Rig) -> None:
    body = msgspec.json.encode(ActionRequest("tester", uuid.uuid4().hex))
    with contextlib.suppress(httpx.TransportError):
        await rig.client.post("/v1/shutdown?jobs=stop", content=body)
