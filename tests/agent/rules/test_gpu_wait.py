"""A job waits until its GPUs have given back the memory of what ran there before."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pipeline.agent.board import Board, Job
from pipeline.agent.host.gpus import GpuWatch
from pipeline.agent.rules import admitting, gpu_wait
from pipeline.agent.rules.gpu_wait import Ledger, Look, devices
from pipeline.agent.store import Store
from pipeline.protocol import GpuSample, HostSample, JobSpec, JobState, JobStatus, Resources, RestartPolicy
from tests.agent.nvml import Nvml, gpu_rig
from tests.agent.rig import NEVER, Rig, shell, until
from tests.agent.sensing import until as until_now

S = JobState
GB = 10**9


def _gpus(*used: int) -> tuple[GpuSample, ...]:
    return tuple(
        GpuSample(index, "GPU", each, 141 * GB, 0.0, uuid=f"GPU-{index}f-abc") for index, each in enumerate(used)
    )


@pytest.mark.parametrize(
    ("named", "inherited", "found"),
    [
        (None, None, (0, 1)),
        ("2,3", None, (2, 3)),
        ("3, 1", "0", (3, 1)),
        (None, "3", (3,)),
        ("GPU-2f-abc", None, (2,)),
        ("GPU-2f", None, (2,)),
        ("MIG-GPU-0f/1/0", None, (0, 1)),
        ("", None, ()),
    ],
)
def test_the_devices_that_a_job_sees(named: str | None, inherited: str | None, found: tuple[int, ...]) -> None:
    env = {} if named is None else {"CUDA_VISIBLE_DEVICES": named}
    spec = JobSpec("a", "serve", ("x",), env=env, resources=Resources(gpus=2))
    assert devices(spec, inherited, _gpus(0, 0, 0, 0)) == found
    assert devices(JobSpec("a", "prep", ("x",), env=env), inherited, _gpus(0, 0)) == ()
    assert devices(JobSpec("a", "prep", ("x",), resources=Resources(gpus=2)), None, ()) == ()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(Store(tmp_path / "journal.db"))


def test_a_device_is_free_when_it_holds_no_more_than_before(ledger: Ledger) -> None:
    ledger.begin((0, 1), Look(1.0, _gpus(3 * GB, 0, 0)))
    ledger.end((0, 1), 10.0)
    assert ledger.held((0, 1), Look(10.0, _gpus(3 * GB, 0, 0))) == "GPU 0: what it still holds is being read"
    assert ledger.held((0,), Look(9.0, _gpus(134 * GB))) == "GPU 0: what it still holds is being read", "its own"
    assert ledger.held((0, 1), Look(11.0, _gpus(134 * GB, 0, 0))) == "GPU 0: 131 GB still held"
    assert ledger.held((0, 1), Look(11.0, _gpus(134 * GB, 90 * GB, 0))) == "GPUs 0, 1: up to 131 GB still held"
    assert ledger.held((0, 1), Look(11.0, _gpus(4 * GB, 2 * GB, 0))) == ""
    assert ledger.held((2,), Look(11.0, _gpus(0, 0, 140 * GB))) == "", "none of ours has run there"
    assert ledger.held((0, 1), Look(11.0, ())) == "", "no NVML"


def test_many_devices_are_shown_short(ledger: Ledger) -> None:
    ledger.begin(range(8), Look(1.0, _gpus(*[0] * 8)))
    assert ledger.held(range(8), Look(2.0, _gpus(*[131 * GB] * 8))) == "GPUs 0–7: up to 131 GB still held"


def test_the_margin_does_not_add_up_and_outlives_the_agent(ledger: Ledger, tmp_path: Path) -> None:
    for turn in range(4):
        ledger.begin((0,), Look(1.0, _gpus(5 * GB + turn * GB // 4)))
    assert ledger.before == {0: 5 * GB}
    # What an operator let it start with is what it is compared with.
    ledger.begin((0,), Look(1.0, _gpus(50 * GB)))
    assert Ledger(Store(tmp_path / "journal.db")).before == {0: 50 * GB}


async def test_the_next_attempt_waits_for_the_device_memory_and_says_so(rig: Rig) -> None:
    nvml = gpu_rig(rig, 1 * GB, 1 * GB)
    await rig.start()
    spec = shell("a", "exec sleep 600", resources=Resources(gpus=1), restart=RestartPolicy(limit=3))
    status = await _ready(rig, spec)
    nvml.say(used=[132 * GB, 1 * GB])
    assert status.pid is not None
    os.kill(status.pid, signal.SIGKILL)
    status = await rig.says("a", "GPU 0: 131 GB still held")
    assert (status.state, status.attempt) == (S.QUEUED, 1)
    # Another on another device starts meanwhile.
    other = shell("b", "exec sleep 600", resources=Resources(gpus=1), env={"CUDA_VISIBLE_DEVICES": "1"})
    await rig.apply(spec, other)
    await rig.reach("b", S.RUNNING)
    assert (await rig.status("a")).attempt == 1
    nvml.say(used=[1 * GB, 1 * GB])
    status = await rig.attempted("a", 2)
    await rig.reach("a", S.RUNNING)


async def test_another_job_on_the_same_device_waits_too_and_an_operator_may_go_ahead(rig: Rig) -> None:
    nvml = gpu_rig(rig, 1 * GB)
    await rig.start()
    first = shell("a", "exec sleep 600", resources=Resources(gpus=1), restart=NEVER)
    second = shell("b", "exec sleep 600", resources=Resources(gpus=1), restart=NEVER, autostart=False)
    await _ready(rig, first, second)
    nvml.say(used=[132 * GB])
    await rig.act("a", "stop")
    await rig.reach("a", S.STOPPED)
    await rig.act("b", "start")
    await rig.says("b", "GPU 0: 131 GB still held")
    # Over the death of an agent it is remembered what the device held before.
    old = rig.holder("agent")
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    await rig.replaced("agent", old, within=10)
    await rig.reach("b", S.QUEUED)
    await rig.says("b", "GPU 0: 131 GB still held")
    reply = await rig.act("b", "restart")
    assert reply.done and reply.text == "starting b although GPU 0: 131 GB still held"
    await rig.reach("b", S.RUNNING)
    texts = [event.text for event in (await rig.state()).events]
    assert "b starting: although GPU 0: 131 GB still held, as tester asked" in texts


def test_a_long_wait_says_how_to_go_ahead(nvml: Nvml, tmp_path: Path) -> None:
    watch = GpuWatch(interval_s=0.05)
    job = Job(JobSpec("a", "serve", ("x",), resources=Resources(gpus=1)), JobStatus("a", S.QUEUED))
    board = Board(Store(tmp_path / "journal.db"), "boot")
    board.gpus.before = {0: 0}
    nvml.say(used=[132 * GB])
    assert watch.wait_first(20)
    until_now(lambda: watch.latest()[0].memory_used == 132 * GB)
    board.host = HostSample(0.0, 2, 0.0, 0, GB, "MemAvailable", gpus=watch.latest())
    assert admitting.admit(board, [job], watch) == {"a": "GPU 0: 132 GB still held"}
    job.held_since -= 3 * gpu_wait.LONG_S
    (reason,) = admitting.admit(board, [job], watch).values()
    assert reason == "GPU 0: 132 GB still held after 3 min; start it again to go ahead all the same"
    job.forced = "alice"
    assert admitting.admit(board, [job], watch) == {"a": ""}
    watch.stop()


async def _ready(rig: Rig, *specs: JobSpec) -> JobStatus:
    """Apply a plan once the GPUs are seen, and wait until its first job runs."""

    async def seen() -> bool:
        host = (await rig.state()).beat.host
        return host is not None and bool(host.gpus)

    await until(seen)
    await rig.apply(*specs)
    return await rig.reach(specs[0].name, S.RUNNING)
