"""Deaths for want of memory, by the kernel's own hand: what is said of them, and what becomes of the job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.agent import endings
from pipeline.agent.attempts.identity import alive
from pipeline.agent.attempts.records import read_claim, read_exit, read_started
from pipeline.agent.board import Board, Job
from pipeline.agent.store import Store
from pipeline.protocol import Attempt, Diagnosis, JobSpec, JobState, JobStatus, Resources, RestartPolicy
from tests.agent.boxes import NO_CGROUPS, box, memory_home, start_in
from tests.agent.rig import NEVER, Rig, exists, shell, touch, until

S = JobState
MIB = 1 << 20


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup with a limit for a whole agent and its jobs."""
    with box("400M") as folder:
        yield folder


def take(mib: int) -> str:
    """A shell command that takes so much memory, and keeps it."""
    code = f"held = [bytes([1]) * (1 << 20) for _ in range({mib})]; import time; time.sleep(600)"
    return f"{sys.executable} -I -S -c '{code}'"


def waits_for(gate: Path) -> str:
    return f"while [ ! -e {gate} ]; do sleep 0.02; done"


def own(rig: Rig, name: str, attempt: int = 1) -> Path:
    started = read_started(rig.folder(name, attempt))
    assert started is not None and started.cgroup, "the job has no cgroup of its own"
    return Path(started.cgroup)


async def test_a_kill_that_its_own_cgroup_counted_is_certain(agent: Rig) -> None:
    memory_home()
    gate = agent.workdir / "gate"
    await agent.apply(shell("a", f"{waits_for(gate)}; exec {take(300)}", restart=NEVER))
    await agent.reach("a", S.RUNNING)
    (own(agent, "a") / "memory.limit_in_bytes").write_text("120M")
    touch(gate)
    status = await agent.reach("a", S.FAILED)
    assert status.diagnosis is not None and status.diagnosis.cause == "oom", status
    assert status.reason.startswith("OOM-killed at ")
    assert "the job's own cgroup: oom_kill 0→1" in status.diagnosis.evidence
    assert any("page cache included" in fact for fact in status.diagnosis.evidence)
    record = read_exit(agent.folder("a"))
    assert record is not None and record.cgroup_peak is not None and 110 * MIB < record.cgroup_peak < 130 * MIB

    async def counted() -> bool:
        host = (await agent.state()).beat.host
        return host is not None and bool(host.oom_kills)

    await until(counted, what="the kill in the job's cgroup among the host's")


async def test_one_that_was_killed_for_memory_is_queued_with_a_higher_need_and_burns_no_restart(
    rig: Rig, limited: Path
) -> None:
    await start_in(rig, limited)
    once = rig.workdir / "once"
    await rig.apply(
        shell("other", f"exec {take(120)}", restart=NEVER, oom_score_adj=0),
        shell(
            "a", f"if [ -e {once} ]; then exit 0; fi; touch {once}; exec {take(600)}", restart=RestartPolicy(limit=0)
        ),
    )
    status = await rig.says("a", "need ")
    assert status.state is S.QUEUED and status.reason.startswith("OOM-killed at ") and "→" in status.reason
    assert status.diagnosis is not None and status.diagnosis.cause == "oom" and status.restarts == 1
    # It waits for the memory that another holds, and says so.
    queued = await until(lambda: _reason(rig, "a", " left"), within=30)
    assert queued.state is S.QUEUED and queued.attempt == 1
    await rig.act("other", "stop")
    status = await rig.reach("a", S.DONE)
    assert status.attempt == 2
    events = [event.text for event in (await rig.state()).events if event.job == "a"]
    assert any(text.startswith("a queued: OOM-killed at ") for text in events)


async def _reason(rig: Rig, name: str, text: str) -> JobStatus | None:
    status = await rig.status(name)
    return status if text in status.reason else None


async def test_a_job_that_had_all_the_memory_there_is_gives_up(rig: Rig, limited: Path) -> None:
    await start_in(rig, limited)
    await rig.apply(shell("a", f"exec {take(600)}", restart=RestartPolicy(limit=100)))
    status = await rig.says("a", "gave up")
    assert status.state is S.FAILED and "OOM-killed" in status.reason and "no more for it" in status.reason
    assert status.attempt <= 4
    assert status.diagnosis is not None and status.diagnosis.cause == "oom"


async def test_a_job_that_is_never_restarted_is_not_queued_again(rig: Rig, limited: Path) -> None:
    await start_in(rig, limited)
    await rig.apply(shell("a", f"exec {take(600)}", restart=NEVER, resources=Resources(memory=100 * MIB)))
    status = await rig.reach("a", S.FAILED)
    assert status.reason.startswith("OOM-killed at ") and status.attempt == 1


async def test_a_child_that_was_killed_is_an_event_and_the_job_goes_on(agent: Rig) -> None:
    memory_home()
    gate = agent.workdir / "gate"
    await agent.apply(shell("a", f"{waits_for(gate)}; {take(300)}; echo child ended $?; exec sleep 600"))
    await agent.reach("a", S.RUNNING)
    (own(agent, "a") / "memory.limit_in_bytes").write_text("120M")
    touch(gate)

    async def told() -> bool:
        return any("the kernel killed one of its processes" in event.text for event in (await agent.state()).events)

    await until(told)
    assert "child ended 137" in (agent.folder("a") / "log").read_text()
    status = await agent.status("a")
    assert (status.state, status.attempt) == (S.RUNNING, 1)
    # A stranger's SIGKILL later on is not laid to the kernel.
    assert status.pid is not None
    looks: set[float] = set()

    async def looked_again() -> bool:
        host = (await agent.state()).beat.host
        looks.add(host.at if host is not None else 0.0)
        return len(looks) == 3

    await until(looked_again)
    os.kill(status.pid, signal.SIGKILL)
    status = await agent.reach("a", S.FAILED)
    assert status.reason == "SIGKILL, sender unknown"


async def test_where_all_share_one_counter_a_kill_is_known_by_it(rig: Rig, limited: Path) -> None:
    await start_in(rig, limited, NO_CGROUPS)
    await rig.apply(shell("a", f"exec {take(600)}", restart=NEVER))
    status = await rig.reach("a", S.FAILED)
    assert status.diagnosis is not None and status.diagnosis.cause == "oom", status
    assert "cgroup oom_kill 0→1" in status.diagnosis.evidence


async def test_where_all_share_one_counter_two_deaths_at_once_are_probable_only(rig: Rig, limited: Path) -> None:
    await start_in(rig, limited, NO_CGROUPS)
    # b ends itself by SIGKILL as soon as a's end is on disk: the counter has moved by one.
    end = rig.folder("a") / "exit.json"
    await rig.apply(
        shell("b", f"{waits_for(end)}; kill -9 $$", restart=NEVER, oom_score_adj=0),
        shell("a", f"{waits_for(rig.workdir / 'gate')}; exec {take(600)}", restart=NEVER),
    )
    for name in ("a", "b"):
        await rig.reach(name, S.RUNNING)
    touch(rig.workdir / "gate")
    for name in ("a", "b"):
        status = await rig.says(name, "probably OOM-killed")
        assert status.diagnosis is not None and status.diagnosis.cause == "probable-oom"
        assert "2 jobs died of SIGKILL meanwhile" in status.diagnosis.evidence


async def test_an_operators_kill_beside_it_leaves_an_oom_kill_certain(rig: Rig, limited: Path) -> None:
    await start_in(rig, limited, NO_CGROUPS)
    await rig.apply(
        shell("b", "exec sleep 600", restart=NEVER, oom_score_adj=0),
        shell("a", f"{waits_for(rig.workdir / 'gate')}; exec {take(600)}", restart=NEVER),
    )
    for name in ("a", "b"):
        await rig.reach(name, S.RUNNING)
    touch(rig.workdir / "gate")
    await until(lambda: exists(rig.folder("a") / "exit.json"))
    await rig.act("b", "kill")
    await rig.reach("b", S.STOPPED)
    status = await rig.reach("a", S.FAILED)
    assert status.diagnosis is not None and status.diagnosis.cause == "oom"


async def test_of_a_job_without_its_shim_the_kills_are_still_known(agent: Rig) -> None:
    memory_home()
    gate = agent.workdir / "gate"
    await agent.apply(shell("a", f"{waits_for(gate)}; exec {take(300)}", restart=NEVER))
    await agent.reach("a", S.RUNNING)
    folder = own(agent, "a")
    (folder / "memory.limit_in_bytes").write_text("120M")
    claim = read_claim(agent.folder("a"))
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    await until(lambda: not alive(claim.process))
    touch(gate)
    status = await agent.reach("a", S.LOST)
    assert status.diagnosis is not None
    assert "the job's own cgroup: oom_kill 0→1" in status.diagnosis.evidence
    assert not folder.exists()


def test_an_earlier_verdict_is_doubted_when_another_death_shares_its_count(tmp_path: Path) -> None:
    board = Board(Store(tmp_path / "journal.db"), "boot")
    certain = Diagnosis("oom", "OOM-killed at 61 GB", ("cgroup oom_kill 4→5",), "advice")
    reason = "OOM-killed at 61 GB; need 61→92 GB"
    for name, number in (("a", 1), ("b", 1), ("c", 2)):
        job = Job(JobSpec(name, "demo", ("x",)), JobStatus(name, S.QUEUED, reason, attempt=number, diagnosis=certain))
        board.jobs[name] = job
        board.store.set_attempt(name, Attempt(number, "rel", reason="OOM-killed at 61 GB"), ended=True)
    # Of c another attempt is meant.
    endings.doubt(board, frozenset({("a", 1), ("b", 1), ("c", 1)}), but=("b", 1))
    status = board.jobs["a"].status
    assert status.diagnosis is not None and status.diagnosis.cause == "probable-oom"
    assert status.diagnosis.summary == "probably OOM-killed at 61 GB"
    assert "3 jobs died of SIGKILL meanwhile" in status.diagnosis.evidence
    assert (status.state, status.reason) == (S.QUEUED, f"probably {reason}")
    assert board.store.attempts("a")[0].reason == "probably OOM-killed at 61 GB"
    assert board.events[-1].text == "a: probably OOM-killed at 61 GB: 3 jobs died of SIGKILL meanwhile"
    assert board.jobs["b"].status.diagnosis == certain and board.jobs["c"].status.diagnosis == certain
    board.store.close()
