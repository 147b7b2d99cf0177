"""The agent with real processes: starts, ends, needs, operator's wishes, and kills at awkward moments."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

from pipeline.agent.attempts.identity import alive
from pipeline.agent.attempts.records import read_claim, read_exit, read_started
from pipeline.protocol import JobState, Need, RestartPolicy
from tests.agent.rig import Rig, exists, shell, touch, until

S = JobState


async def test_a_job_runs_and_is_done(agent: Rig) -> None:
    await agent.apply(shell("a", "echo hello; exit 0"))
    status = await agent.reach("a", S.DONE)
    assert (status.exit_code, status.attempt, status.signal) == (0, 1, None)
    assert (agent.folder("a") / "log").read_bytes() == b"hello\n"
    assert status.started_at is not None and status.ended_at is not None and status.ended_at >= status.started_at


async def test_a_killed_job_is_failed_within_a_second_and_says_by_what(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 100"))
    status = await agent.reach("a", S.RUNNING)
    assert status.pid is not None
    killed = time.monotonic()
    os.kill(status.pid, signal.SIGKILL)
    status = await agent.reach("a", S.FAILED, within=1.0)
    assert time.monotonic() - killed < 1.0
    assert status.signal == signal.SIGKILL and status.exit_code is None
    assert "SIGKILL" in status.reason and status.diagnosis is not None


async def test_a_missing_program_is_named(agent: Rig) -> None:
    spec = shell("a", "")
    await agent.apply(type(spec)(name="a", stage="demo", argv=("no-such-program", "x"), restart=spec.restart))
    status = await agent.reach("a", S.FAILED)
    assert "no-such-program" in status.reason and "No such file" in status.reason


async def test_needs_failed_needs_and_waiving(agent: Rig) -> None:
    await agent.apply(
        shell("a", "exit 1"),
        shell("b", "sleep 0.3"),
        shell("c", "true", needs=(Need("a"), Need("b"))),
        shell("d", "true", needs=(Need("c"),)),
    )
    await agent.reach("a", S.FAILED)
    await agent.reach("b", S.DONE)
    await agent.says("c", "waits for a, which failed")
    assert (await agent.status("d")).reason == "waits for c, behind a, which failed"
    assert not (await agent.act("a", "waive")).done
    assert (await agent.act("a", "waive", reason="gated")).done
    await agent.reach("d", S.DONE)
    assert (await agent.status("a")).waived == "gated"
    assert (await agent.status("a")).state is S.FAILED


async def test_stop_ends_the_whole_tree_and_lasts_over_a_new_agent(agent: Rig) -> None:
    pids = agent.workdir / "pids"
    script = f"setsid sleep 1000 & echo $! >> {pids}; sleep 1000 & echo $! >> {pids}; wait"
    await agent.apply(shell("a", script))
    await agent.reach("a", S.RUNNING)
    await until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    reply = await agent.act("a", "stop", request="once")
    assert reply.done
    status = await agent.reach("a", S.STOPPED)
    assert "tester" in status.reason
    assert not any(exists(f"/proc/{pid}") for pid in pids.read_text().split())
    assert await agent.act("a", "stop", request="once") == reply
    old = agent.holder("agent")
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    await agent.replaced("agent", old)
    status = await agent.reach("a", S.STOPPED)
    assert status.attempt == 1


async def test_kill_does_not_wait_for_the_grace(agent: Rig) -> None:
    await agent.apply(shell("a", "trap '' TERM; while :; do sleep 0.1; done", stop_grace_s=60.0))
    await agent.reach("a", S.RUNNING)
    await agent.act("a", "kill")
    status = await agent.reach("a", S.STOPPED, within=5)
    assert status.signal == signal.SIGKILL


async def test_a_grace_that_is_changed_holds_for_the_attempt_that_runs(agent: Rig) -> None:
    spec = shell("a", "trap '' TERM; echo up; while :; do sleep 0.1; done", stop_grace_s=600.0)
    await agent.apply(spec)
    running = await agent.reach("a", S.RUNNING)
    await until(lambda: (agent.folder("a") / "log").read_bytes() == b"up\n")
    reply = await agent.apply(replace(spec, stop_grace_s=0.2))
    assert [change.effect for change in reply.changes] == ["live"]
    await agent.act("a", "stop")
    status = await agent.reach("a", S.STOPPED)
    assert (status.signal, status.attempt) == (signal.SIGKILL, running.attempt)


async def test_restart_by_the_operator_is_done_once(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 100"))
    await agent.reach("a", S.RUNNING)
    await agent.act("a", "restart", request="r1")
    await agent.act("a", "restart", request="r1")
    await agent.attempted("a", 2)
    status = await agent.reach("a", S.RUNNING)
    assert status.attempt == 2
    first = read_exit(agent.folder("a", 1))
    assert first is not None and first.asked == "stop"


async def test_crashes_are_restarted_at_once_then_backed_off_then_given_up(agent: Rig) -> None:
    policy = RestartPolicy(limit=3, backoff_s=0.05, backoff_max_s=0.1)
    await agent.apply(shell("a", "exit 7", restart=policy))
    status = await agent.says("a", "gave up after 3 restarts")
    assert status.state is S.FAILED
    state = await agent.state()
    assert state.jobs["a"].attempt == 4 and state.jobs["a"].exit_code == 7
    states = [event.status.state for event in state.events if event.job == "a" and event.status]
    assert states.count(S.BACKOFF) == 3
    assert any(event.text.startswith("a failed: gave up after 3 restarts") for event in state.events)
    assert (await agent.post("/v1/restart-crashed")).done
    await agent.attempted("a", 8)


async def test_an_exit_code_that_the_policy_names_is_final_and_said_to_be(agent: Rig) -> None:
    policy = RestartPolicy(limit=2, backoff_s=0.01, no_retry=(7, 9))
    await agent.apply(shell("a", "echo no; exit 9", restart=policy), shell("b", "exit 3", restart=policy))
    status = await agent.says("a", "exit code 9 is not tried again")
    assert (status.state, status.attempt, status.restarts) == (S.FAILED, 1, 0)
    assert "gave up" in (await agent.says("b", "gave up")).reason


async def test_a_restart_touches_no_other_job_unless_asked_to(agent: Rig) -> None:
    await agent.apply(
        shell("a", "exec sleep 100", service=True),
        shell("b", "exec sleep 100", needs=(Need("a", "ready"),)),
        shell("c", "exec sleep 100", needs=(Need("a", "ready"),)),
        shell("d", "true", needs=(Need("b"),)),
        shell("e", "exec sleep 100"),
    )
    before = {name: await agent.reach(name, S.READY, S.RUNNING) for name in "abce"}
    assert (await agent.act("a", "restart")).text == "restarting a"
    again = await agent.attempted("a", 2)
    await agent.reach("a", S.READY)
    for name in "bce":
        assert await agent.status(name) == before[name]
    assert again.restarts == 0

    await agent.act("c", "stop")
    stopped = await agent.reach("c", S.STOPPED)
    reply = await agent.act("a", "restart-with-dependents", request="once")
    assert (reply.done, reply.text) == (True, "restarting a, and behind it b")
    assert await agent.act("a", "restart-with-dependents", request="once") == reply
    await agent.attempted("a", 3)
    await agent.attempted("b", 2)
    await agent.reach("b", S.RUNNING)
    assert await agent.status("c") == stopped and await agent.status("e") == before["e"]
    assert (await agent.status("d")).attempt == 0
    # The job behind starts only when the one before is ready again.
    begun = [
        (event.job, event.status.state, event.status.attempt) for event in (await agent.state()).events if event.status
    ]
    assert begun.index(("a", S.READY, 3)) < begun.index(("b", S.STARTING, 2))


async def test_exit_code_three_is_final(agent: Rig) -> None:
    await agent.apply(shell("a", "exit 3", restart=RestartPolicy(limit=3, backoff_s=0.01)))
    await agent.reach("a", S.FAILED, S.EMPTY)
    await agent.apply(shell("a", "exit 3", restart=RestartPolicy(limit=3, backoff_s=0.01)), shell("b", "true"))
    await agent.reach("b", S.DONE)
    assert (await agent.status("a")).attempt == 1


async def test_the_agent_killed_adopts_and_starts_nothing_twice(agent: Rig) -> None:
    starts = agent.workdir / "starts"
    gate = agent.workdir / "gate"
    jobs = [
        shell(
            f"j{number}",
            f"echo j{number} >> {starts}; while [ ! -e {gate}{number} ]; do sleep 0.02; done; exit 4{number}",
        )
        for number in range(5)
    ]
    await agent.apply(*jobs)
    for number in range(5):
        await agent.reach(f"j{number}", S.RUNNING)
    await until(lambda: len(starts.read_text().split()) == 5)
    old, keeper = agent.holder("agent"), agent.holder("keeper")
    assert old is not None and keeper is not None
    # The keeper is held, so that jobs can end while there is no agent.
    os.kill(keeper.pid, signal.SIGSTOP)
    os.kill(old.pid, signal.SIGKILL)
    for number in (0, 1):
        touch(f"{gate}{number}")
        await agent.recorded(f"j{number}")
    os.kill(keeper.pid, signal.SIGCONT)
    began = time.monotonic()
    await agent.replaced("agent", old)
    for number in (0, 1):
        status = await agent.reach(f"j{number}", S.FAILED)
        assert status.exit_code == 40 + number
    assert time.monotonic() - began < 15
    for number in (2, 3, 4):
        status = await agent.status(f"j{number}")
        assert (status.state, status.attempt) == (S.RUNNING, 1)
        touch(f"{gate}{number}")
        assert (await agent.reach(f"j{number}", S.FAILED)).exit_code == 40 + number
    assert sorted(starts.read_text().split()) == [f"j{number}" for number in range(5)]


async def test_agent_and_keeper_bring_each_other_back(agent: Rig) -> None:
    for name in ("keeper", "agent", "keeper"):
        old = agent.holder(name)
        assert old is not None
        os.kill(old.pid, signal.SIGKILL)
        await agent.replaced(name, old)


async def test_a_shim_killed_leaves_its_job_watched_and_its_end_unknown(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    status = await agent.reach("a", S.RUNNING)
    claim, started = read_claim(agent.folder("a")), read_started(agent.folder("a"))
    assert claim is not None and started is not None and status.pid == started.pid
    os.kill(claim.pid, signal.SIGKILL)
    await until(lambda: not alive(claim.process))
    await asyncio.sleep(0.2)
    assert (await agent.status("a")).state is S.RUNNING and alive(started.process)
    os.kill(started.pid, signal.SIGKILL)
    status = await agent.reach("a", S.LOST)
    assert status.exit_code is None


async def test_a_job_without_its_shim_can_be_stopped(agent: Rig) -> None:
    pids = agent.workdir / "pids"
    await agent.apply(shell("a", f"(setsid sleep 1000 & echo $! >> {pids}); sleep 1000"))
    await agent.reach("a", S.RUNNING)
    await until(lambda: pids.exists() and pids.read_text().split())
    claim = read_claim(agent.folder("a"))
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    await until(lambda: not alive(claim.process))
    await agent.act("a", "stop")
    await agent.reach("a", S.STOPPED, S.LOST)
    assert not any(exists(f"/proc/{pid}/fd/0") for pid in pids.read_text().split())


async def test_two_starts_at_once_make_one_agent(rig: Rig) -> None:
    answers = await asyncio.gather(*(asyncio.to_thread(rig.call, "start") for _ in range(3)))
    assert all(answer["ok"] for answer in answers)
    pids = [answer["pid"] for answer in answers]
    assert len(set(pids)) == 1
    second = await asyncio.create_subprocess_exec(*rig.command("run"), env=rig.environment)
    assert await asyncio.wait_for(second.wait(), 10) == 0
    assert rig.holder("agent") is not None and rig.holder("agent").pid == pids[0]  # type: ignore[union-attr]


async def test_stop_ends_agent_and_keeper_and_jobs_go_on(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    await agent.reach("a", S.RUNNING)
    started = read_started(agent.folder("a"))
    assert started is not None
    answer = await asyncio.to_thread(agent.call, "stop")
    assert answer == {"ok": True}
    assert agent.holder("agent") is None and agent.holder("keeper") is None and alive(started.process)
    assert not list(agent.runtime.glob("*.sock"))
    await agent.start()
    status = await agent.status("a")
    assert (status.attempt, status.pid) == (1, started.pid)
