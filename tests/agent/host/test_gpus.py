"""What the agent knows of GPUs: figures, faults, and that a driver which hangs holds up nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.agent.attempts.identity import Process, alive, descendants, identify, read_stat
from pipeline.agent.diagnosis.causes import diagnose
from pipeline.agent.diagnosis.evidence import Evidence
from pipeline.agent.host import cgroups, gpus
from pipeline.agent.host.gpu_faults import XIDS, GpuFault, in_words, meaning, near
from pipeline.agent.host.gpus import GpuWatch
from pipeline.protocol import JobSpec, JobState, Resources
from tests.agent.nvml import Nvml, gpu_rig
from tests.agent.rig import Rig, shell
from tests.agent.rig import until as until_async
from tests.agent.sensing import until

S = JobState
GB = 10**9


@pytest.fixture
def watch(nvml: Nvml) -> Iterator[GpuWatch]:
    made = GpuWatch(interval_s=0.05)
    assert made.wait_first(20)
    yield made
    made.stop()


def reader_of(rig: Rig) -> Process:
    agent = rig.holder("agent")
    assert agent is not None
    return until(lambda: next((child for child in descendants(agent.pid) if _is_reader(child.pid)), None))  # type: ignore[return-value]


def _is_reader(pid: int) -> bool:
    try:
        return b"gpu_reader.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# --- Figures ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_every_gpu(watch: GpuWatch, nvml: Nvml) -> None:
    first, second = watch.latest()
    assert (first.index, first.name, first.memory_used, first.memory_total) == (0, "Test GPU", 3 * GB, 141 * GB)
    assert (second.utilisation, second.temperature, second.power, second.uuid) == (93, None, 588, "GPU-1-abc")
    before = watch.look().at
    nvml.say(used=[5 * GB, 4 * GB])
    until(lambda: watch.latest()[0].memory_used == 5 * GB)
    assert watch.look().at > before and watch.remarks() == ()


def test_one_gpu_that_is_lost_does_not_hide_the_others(watch: GpuWatch, nvml: Nvml) -> None:
    nvml.say(used=[None, 4 * GB])
    until(lambda: len(watch.latest()) == 1)
    assert watch.latest()[0].index == 1
    assert watch.remarks() == ("GPU 0 does not answer: GPU is lost",)


def test_where_nvml_refuses_its_words_are_shown_and_it_is_not_asked_again(nvml: Nvml) -> None:
    nvml.say(refused="Driver/library version mismatch")
    watch = GpuWatch(interval_s=0.05)
    assert watch.wait_first(20)
    assert watch.latest() == () and watch.remarks() == ("no GPU figures: Driver/library version mismatch",)
    until(lambda: watch._reader is not None and watch._reader.poll() is not None)
    watch.stop()


def test_a_reader_that_dies_is_started_again(watch: GpuWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "AGAIN_S", 0.1)
    reader = watch._reader
    assert reader is not None
    reader.kill()
    until(lambda: watch._reader is not reader and watch.latest())


def test_a_reader_ends_when_nobody_reads_it(nvml: Nvml) -> None:
    reader = subprocess.Popen([sys.executable, "-P", gpus.READER, "0.05"], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline().startswith(b"{")
    reader.stdout.close()
    assert reader.wait(20) == 0


# --- A driver that hangs ---------------------------------------------------------------------------------------------


def test_a_driver_that_hangs_is_said_and_its_old_figures_are_not_shown(
    watch: GpuWatch, nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "STALE_S", 0.5)
    nvml.say(hangs=True)
    until(lambda: watch.remarks())
    assert watch.remarks()[0].startswith("the GPU driver has not answered for ") and watch.latest() == ()
    began = time.monotonic()
    for _ in range(100):
        watch.latest()
    assert time.monotonic() - began < 10
    nvml.say(hangs=False)
    until(lambda: len(watch.latest()) == 2)
    assert watch.remarks() == ()


def test_a_reader_that_was_silent_for_long_is_replaced(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "HUNG_S", 5)
    monkeypatch.setattr(gpus, "AGAIN_S", 0.1)
    watch = GpuWatch(interval_s=0.05)
    assert watch.wait_first(20)
    reader = watch._reader
    assert reader is not None
    os.kill(reader.pid, signal.SIGSTOP)
    until(lambda: watch._reader is not reader and watch.latest(), timeout=30)
    watch.stop()


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup that can hold processes in a sleep that no signal ends, as a hung driver does."""
    group = cgroups.find("freezer")
    if group is None or group.version != 1 or not os.access(group.folder, os.W_OK):
        pytest.skip("no writable freezer cgroup of version 1 here")
    folder = group.folder / f"ddtest-{os.getpid()}"
    folder.mkdir()
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


async def test_an_agent_dies_and_comes_back_while_the_driver_holds_the_reader_for_ever(rig: Rig, freezer: Path) -> None:
    gpu_rig(rig, 3 * GB)
    await rig.start()
    await rig.apply(shell("a", "exec sleep 600"))
    await rig.reach("a", S.RUNNING)
    reader = reader_of(rig)
    (freezer / "cgroup.procs").write_text(str(reader.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
    os.kill(reader.pid, signal.SIGKILL)
    stat = read_stat(reader.pid)
    assert stat is not None and stat[0] == "D" and alive(reader), "it cannot be killed"

    async def said() -> bool:
        host = (await rig.state()).beat.host
        return host is not None and any("driver has not answered" in remark for remark in host.remarks)

    await until_async(said, within=30)
    old = rig.holder("agent")
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    await rig.replaced("agent", old, within=10)
    status = await rig.reach("a", S.RUNNING)
    assert status.attempt == 1 and alive(reader)
    assert identify(old.pid) is None or not alive(old)
    (freezer / "freezer.state").write_text("THAWED")
    await until_async(lambda: not alive(reader))


# --- Faults ----------------------------------------------------------------------------------------------------------


def test_faults_that_the_driver_tells_of(watch: GpuWatch, nvml: Nvml) -> None:
    nvml.xid(1, 79)
    nvml.xid(0, 31)
    until(lambda: len(watch.faults()) == 2)
    assert [(fault.gpu, fault.xid) for fault in watch.faults()] == [(1, 79), (0, 31)]
    assert len(watch.news()) == 2 and watch.news() == ()
    assert watch.remarks() == ("GPU 1: Xid 79 (fell off the bus)",)
    assert len(watch.latest()) == 2


def test_memory_errors_that_were_not_corrected_are_a_fault(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.say(ecc=3)
    watch = GpuWatch(interval_s=0.05)
    assert watch.wait_first(20)
    assert watch.faults() == ()  # those are from before
    nvml.say(ecc=5)
    until(lambda: len(watch.faults()) == 2, timeout=30)
    assert in_words(watch.faults()[0]) == "GPU 0: 2 memory errors that could not be corrected"
    watch.stop()


def test_every_known_fault_has_words_and_advice() -> None:
    for number in XIDS:
        fault = GpuFault(3, 0.0, 0.0, xid=number)
        assert in_words(fault).startswith(f"GPU 3: Xid {number} (") and meaning(fault).advice
    assert in_words(GpuFault(None, 0.0, 0.0, xid=7777)) == "a GPU: Xid 7777 (see NVIDIA's list)"


def _fault(xid: int, gpu: int | None = 3, at: float = 100.0) -> GpuFault:
    return GpuFault(gpu, 0.0, at, xid=xid)


def test_faults_near_a_death_on_its_devices() -> None:
    faults = (_fault(79, at=10), _fault(79), _fault(79, gpu=4), _fault(31), _fault(48, gpu=None))
    assert near(faults, (3,), 50.0, 101.0) == (_fault(79), _fault(31), _fault(48, gpu=None))
    # A collective may hang for minutes before a watchdog ends it; a fault of the program ends it at once.
    assert near(faults, (3,), 50.0, 400.0) == (_fault(79), _fault(48, gpu=None))
    assert near(faults, (), 50.0, 101.0) == (_fault(48, gpu=None),)
    assert near((_fault(79, at=103.0),), (3,), 50.0, 101.0) and not near((_fault(79, at=120.0),), (3,), 50.0, 101.0)


SERVE = JobSpec("serve:baseline", "serve", ("x",), service=True)
TRAIN = JobSpec("train", "train", ("x",))


def test_a_fault_of_the_hardware_is_the_cause_whatever_the_log_says() -> None:
    log = b"Traceback (most recent call last):\n  File 'x', line 1, in f\nRuntimeError: NCCL error: unhandled\n"
    state, reason, diagnosis = diagnose(Evidence(TRAIN, exit_code=1, log_tail=log, gpu_faults=(_fault(79),)))
    assert (state, reason) == (S.FAILED, "GPU 3: Xid 79 (fell off the bus)")
    assert diagnosis is not None and diagnosis.cause == "gpu-fault" and "restarted" in diagnosis.advice


def test_a_fault_of_the_program_explains_only_what_nothing_else_does() -> None:
    fault = (_fault(31),)
    _, reason, diagnosis = diagnose(Evidence(TRAIN, signal=6, gpu_faults=fault))
    assert reason == "GPU 3: Xid 31 (memory page fault)" and diagnosis is not None
    log = b"Traceback (most recent call last):\n  File 'x', line 1, in f\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    _, reason, diagnosis = diagnose(Evidence(TRAIN, exit_code=1, log_tail=log, gpu_faults=fault))
    assert diagnosis is not None and diagnosis.cause == "cuda-oom"
    assert "GPU 3: Xid 31 (memory page fault)" in diagnosis.evidence
    # The driver cleans up after every program that is killed.
    _, reason, diagnosis = diagnose(Evidence(TRAIN, signal=9, gpu_faults=(_fault(45),)))
    assert reason == "SIGKILL, sender unknown"


async def test_a_fault_while_a_job_runs_is_an_event_and_stays_on_the_screen_and_ends_in_its_diagnosis(rig: Rig) -> None:
    nvml = gpu_rig(rig, 1 * GB, 1 * GB)
    await rig.start()
    gate = rig.workdir / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 1"
    await rig.apply(
        shell("a", script, resources=Resources(gpus=1), env={"CUDA_VISIBLE_DEVICES": "1"}),
        shell("b", script, resources=Resources(gpus=1), env={"CUDA_VISIBLE_DEVICES": "0"}),
    )
    for name in ("a", "b"):
        await rig.reach(name, S.RUNNING)
    nvml.xid(1, 95)

    async def told() -> bool:
        state = await rig.state()
        host = state.beat.host
        text = "GPU 1: Xid 95 (uncontained memory error)"
        shown = host is not None and text in host.remarks
        return shown and any(event.kind == "host" and event.text.startswith(text) for event in state.events)

    await until_async(told)
    gate.touch()
    status = await rig.reach("a", S.FAILED)
    assert status.reason == "GPU 1: Xid 95 (uncontained memory error)"
    assert status.diagnosis is not None and status.diagnosis.cause == "gpu-fault"
    assert "Xid" not in (await rig.reach("b", S.FAILED)).reason
