"""The wall clock set an hour forth and back while jobs run, back off and end: no state and no order changes."""

from __future__ import annotations

import signal
import struct
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest

from console.view import Snapshot, fold
from pipeline.agent.attempts.identity import send
from pipeline.agent.attempts.logs import time_at
from pipeline.agent.attempts.records import read_claim, read_exit, read_started
from pipeline.protocol import Event, History, JobState, RestartPolicy
from tests.agent.attempts.test_torn import agent_away
from tests.agent.clocks import Clock
from tests.agent.rig import Rig, exists, shell, touch, until

S = JobState
HOUR = 3600
STEPS = (HOUR, -HOUR)

WORKER = """
import sys, time
from pathlib import Path
from pipeline.progress import Reporter
reporter, done = Reporter(interval_s=0.0), 0
while not Path("ended").exists():
    done += 1
    reporter.update("read", done=done, total=10_000)
    print("line", done, flush=True)
    time.sleep(0.05)
sys.exit(6)
"""


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Everything that this test starts with Python is under it."""
    made = Clock(tmp_path / "clock")
    monkeypatch.setattr(sys, "executable", str(made.python))
    return made


async def looks(rig: Rig, count: int = 2) -> None:
    """Wait for so many more looks of the agent at its jobs."""
    seen = set()
    async for line in rig.stream((await rig.state()).seq):
        if line.beat is not None and line.beat.host is not None:
            seen.add(line.beat.host.at)
        if len(seen) > count:
            return


async def events(rig: Rig) -> list[Event]:
    """Every event there was."""
    found: list[Event] = []
    async for line in rig.stream(0):
        if line.event is None:
            break
        found.append(line.event)
    return found


async def test_what_runs_and_what_waits_stays_as_it_is(rig: Rig, clock: Clock) -> None:
    await rig.start()
    (rig.workdir / "worker.py").write_text(WORKER)
    argv = f"exec {clock.python} {rig.workdir}/worker.py"
    long_backoff = RestartPolicy(limit=9, backoff_s=600.0, backoff_max_s=600.0)
    await rig.apply(
        shell("worker", argv, stall_s=60.0, env={"PYTHONPATH": rig.environment["PYTHONPATH"]}),
        shell("plain", "exec sleep 1000"),
        shell("crashes", "exit 1", restart=long_backoff),
        shell("over", "exit 0"),
    )
    await rig.attempted("crashes", 2)
    for name, reached in (("worker", S.RUNNING), ("plain", S.RUNNING), ("crashes", S.BACKOFF), ("over", S.DONE)):
        await rig.reach(name, reached)
    await looks(rig)
    before = await rig.state()
    for offset in STEPS:
        clock.set(offset)
        await looks(rig)
        state = await rig.state()
        # No state, no reason, no time of anything that happened before; and no event.
        assert state.jobs == before.jobs and state.seq == before.seq
        assert abs(state.at - clock.now()) < 60
        up_s = fold(Snapshot("", ""), state, 0.0).jobs[0].up_s
        assert up_s is not None and 0 < up_s < 600
        sample = state.beat.jobs["worker"]
        assert sample.cpu_percent is not None and sample.processes == 1 and sample.memory
        assert sample.rate is not None and 2 < sample.rate < 21
        assert sample.progress is not None and sample.eta is not None
        left = (10_000 - sample.progress.done) / sample.rate
        assert 0.5 * left < sample.eta.seconds < 2 * left
        # The curve ends now, in order, and its last value is the newest.
        answer = await rig.client.get("/v1/history", params={"job": "worker", "figure": "done"})
        curve = msgspec.json.decode(answer.content, type=History)
        assert list(curve.at) == sorted(curve.at) and list(curve.values) == sorted(curve.values)
        assert all(at <= clock.now() + 1 for at in curve.at)

    # A new agent, under another clock again, finds all as it was.
    clock.set(-HOUR)
    old = rig.holder("agent")
    assert old is not None
    send(old, signal.SIGKILL)
    await rig.replaced("agent", old)
    await rig.reach("worker", S.RUNNING)
    await looks(rig)
    assert (await rig.state()).jobs == before.jobs
    clock.set(HOUR)
    touch(rig.workdir / "ended")
    status = await rig.reach("worker", S.FAILED)
    assert (status.exit_code, status.attempt) == (6, 1)
    log_index_is_sane(rig.folder("worker"), clock)
    seen = await events(rig)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    states = [event.status.state for event in seen if event.job == "worker" and event.status]
    assert states == [S.WAITING, S.STARTING, S.RUNNING, S.FAILED]


def log_index_is_sane(folder: Path, clock: Clock) -> None:
    """Offsets only grow, and each has the time that the clock showed when it was written."""
    records = list(struct.iter_unpack("<dQ", (folder / "log.idx").read_bytes()))
    sizes = [size for _, size in records]
    assert len(records) >= 5 and sizes == sorted(set(sizes)) and sizes[-1] == (folder / "log").stat().st_size
    real = [(folder / "claim").stat().st_mtime, time.time()]
    for at, size in records:
        assert any(real[0] - 2 < at - offset < real[1] + 2 for offset in clock.offsets)
        assert time_at(folder / "log.idx", size - 1) == at


async def test_backoff_and_grace_are_waited_for_by_the_monotonic_clock(rig: Rig, clock: Clock) -> None:
    await rig.start()
    policy = RestartPolicy(limit=9, backoff_s=2.0, backoff_max_s=2.0)
    ignores = "trap '' TERM; while :; do sleep 0.05; done"
    await rig.apply(shell("a", "exit 1", restart=policy), shell("b", ignores, stop_grace_s=2.0))
    await rig.reach("b", S.RUNNING)
    for number, offset in ((2, HOUR), (3, -HOUR)):
        await rig.attempted("a", number)
        await rig.reach("a", S.BACKOFF)
        clock.set(offset)
        await rig.attempted("a", number + 1)
        ended, following = read_exit(rig.folder("a", number)), rig.folder("a", number + 1)
        next_one = await until(partial(read_started, following))
        assert ended is not None and ended.tree_empty[1] >= ended.main_exited[1]
        assert 1.4 < next_one.monotonic - ended.tree_empty[1] < 15
    for offset in (HOUR, -HOUR):
        asked = time.monotonic()
        await rig.act("b", "stop")
        clock.set(offset)
        status = await rig.reach("b", S.STOPPED)
        record = read_exit(rig.folder("b", status.attempt))
        assert record is not None and record.signal == signal.SIGKILL
        assert 1.8 < record.tree_empty[1] - asked < 15
        await rig.act("b", "start")
        await rig.reach("b", S.RUNNING)


async def test_the_window_of_restarts_and_the_healthy_time_are_not_those_of_the_wall_clock(
    rig: Rig, clock: Clock
) -> None:
    """Two restarts in ten minutes are the limit, five healthy minutes reset it: hours by the wall clock are neither."""
    await rig.start()
    policy = RestartPolicy(limit=2, backoff_s=0.01, window_s=600.0, healthy_s=300.0)
    script = 'd=${DRAFTDECK_PROGRESS%/*}; while [ ! -e "go${d##*/}" ]; do sleep 0.02; done; exit 1'
    await rig.apply(shell("a", script, restart=policy))
    for number, offset in ((1, HOUR), (2, -HOUR), (3, 2 * HOUR)):
        await rig.attempted("a", number)
        await rig.reach("a", S.RUNNING)
        clock.set(offset)
        touch(rig.workdir / f"go{number}")
    status = await rig.says("a", "gave up after 2 restarts")
    assert (status.state, status.attempt) == (S.FAILED, 3)


async def test_an_end_while_nobody_looks_is_known_under_another_clock(rig: Rig, clock: Clock) -> None:
    """Keeper and agent are gone, the clock is set back, jobs and a shim end; what comes next is as ever."""
    await rig.start()
    await rig.apply(
        shell("a", "while [ ! -e go ]; do sleep 0.02; done; exit 9"),
        shell("b", "exec sleep 1000", restart=RestartPolicy(limit=2)),
        shell("c", "exec sleep 1000"),
    )
    for name in "abc":
        await rig.reach(name, S.RUNNING)
    claim, started = read_claim(rig.folder("b")), read_started(rig.folder("b"))
    before = await rig.status("c")
    assert claim is not None and started is not None
    await agent_away(rig)
    clock.set(-HOUR)
    touch(rig.workdir / "go")
    send(claim.process, signal.SIGKILL)
    send(started.process, signal.SIGKILL)
    await rig.recorded("a")
    await rig.start()
    assert (await rig.reach("a", S.FAILED)).exit_code == 9
    assert (await rig.attempted("b", 2)).restarts == 1
    assert await rig.reach("c", S.RUNNING) == before
    assert exists(rig.folder("b", 2))
    seen = await events(rig)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
