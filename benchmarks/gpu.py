"""Supervision on a real GPU: what a killed job leaves, the wait for its memory, a fault the driver tells of.

Needs a GPU, torch and nvidia-ml-py, so it runs only when it is named: ``python -m benchmarks gpu``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pipeline.agent.attempts.records import read_started
from pipeline.protocol import JobSpec, JobState, Resources, RestartPolicy
from tests.agent.rig import NEVER, Rig, until

JOB_GB: Final = 20
STRANGER_GB: Final = 30
ROUNDS: Final = 8
TAKE: Final = "import sys, time, torch; held = torch.empty(int(sys.argv[1]) * 10**9, dtype=torch.uint8, device='cuda')"
HOLD: Final = f"{TAKE}; torch.cuda.synchronize(); open(sys.argv[2], 'w').write(str(time.time())); time.sleep(3600)"
FAULT: Final = (
    "import cupy; f = cupy.RawKernel('extern \"C\" __global__ void f(int *p) { p[1 << 30] = 1; }', 'f');"
    "f((1,), (1,), (cupy.uint64(8),)); cupy.cuda.Device().synchronize()"
)
AGAIN: Final = RestartPolicy(limit=1000, healthy_s=0.0)


def measure(quick: bool) -> dict[str, Any]:
    """Run everything once; the figures and words as they came."""
    os.environ["SHELL"] = "/bin/sh"
    with tempfile.TemporaryDirectory(prefix="draftdeck-gpu-") as folder:
        figures = asyncio.run(_measure(Path(folder), 2 if quick else ROUNDS))
    print(f"\n| a job on one {figures['device']} | |")
    print("| --- | --- |")
    again, freed = figures["again_ms"], figures["freed_ms"]
    print(f"| SIGKILLed with {JOB_GB} GB → runs again, p50 / max | {again['p50']:.0f} / {again['max']:.0f} ms |")
    print(f"| the same while another process holds {STRANGER_GB} GB: it waits | {figures['held_reason']} |")
    print(f"| that process ended → runs again, p50 / max | {freed['p50']:.0f} / {freed['max']:.0f} ms |")
    print(f"| asks for more than the device has | {figures['oom']['reason']} |")
    print(f"| writes where nothing is | {figures['fault']['reason']} |")
    return figures


async def _measure(folder: Path, rounds: int) -> dict[str, Any]:
    rig = Rig(folder / "work")
    await rig.start()
    try:
        gpus = await until(lambda: _gpus(rig), within=60, what="a GPU")
        figures: dict[str, Any] = {"device": gpus[0].name, "memory_total": gpus[0].memory_total, "rounds": rounds}
        await rig.apply(*(_job(rig, *each) for each in _JOBS))
        figures["again_ms"] = _spread([await _killed(rig) for _ in range(rounds)])
        waited = [await _held(rig) for _ in range(rounds)]
        figures["held_reason"] = waited[0][0]
        figures["freed_ms"] = _spread([ms for _, ms in waited])
        await rig.act("holds", "stop")
        await rig.reach("holds", JobState.STOPPED, within=60)
        figures["oom"] = await _ends(rig, "too-much")
        figures["fault"] = await _ends(rig, "faults")
        figures["events"] = [event.text for event in (await rig.state()).events if event.kind == "host"]
        return figures
    finally:
        await rig.close()


_JOBS: Final = (
    ("holds", HOLD, str(JOB_GB), AGAIN),
    ("too-much", TAKE, "400", NEVER),
    ("faults", FAULT, "", NEVER),
)


def _job(rig: Rig, name: str, script: str, argument: str, policy: RestartPolicy) -> JobSpec:
    argv = (sys.executable, "-c", script, argument, str(rig.workdir / f"{name}.held"))
    return JobSpec(
        name, "train", argv, env={"PATH": os.environ["PATH"]}, restart=policy, resources=Resources(gpus=1),
        autostart=name == "holds", stop_grace_s=2.0,
    )  # fmt: skip


async def _gpus(rig: Rig) -> Any:
    host = (await rig.state()).beat.host
    return host.gpus if host is not None else ()


async def _holding(rig: Rig, name: str, since: float) -> None:
    """Wait until a process has said that it holds its memory."""
    path = rig.workdir / f"{name}.held"
    await until(lambda: path.exists() and float(path.read_text() or 0) > since, within=120, what=f"{name} holds")


async def _begun(rig: Rig, attempt: int, within: float = 60.0) -> float:
    """When an attempt's program was started, monotonic."""
    record = await until(lambda: read_started(rig.folder("holds", attempt)), within=within, what=f"attempt {attempt}")
    return float(record.monotonic)


async def _killed(rig: Rig) -> float:
    """Milliseconds from the SIGKILL of a job that holds memory to its next start."""
    status = await rig.reach("holds", JobState.RUNNING, within=60)
    await _holding(rig, "holds", status.started_at or 0.0)
    assert status.pid is not None
    at = time.monotonic()
    os.kill(status.pid, signal.SIGKILL)
    return 1000 * (await _begun(rig, status.attempt + 1) - at)


async def _held(rig: Rig) -> tuple[str, float]:
    """Kill the job while another process holds memory: what is said; milliseconds from its end to the next start."""
    status = await rig.reach("holds", JobState.RUNNING, within=60)
    await _holding(rig, "holds", status.started_at or 0.0)
    assert status.pid is not None
    since, mark = time.time(), rig.workdir / "stranger.held"
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, str(STRANGER_GB), str(mark))
    try:
        await _holding(rig, "stranger", since)
        os.kill(status.pid, signal.SIGKILL)
        said = (await rig.says("holds", "still held")).reason
    finally:
        stranger.kill()
        await stranger.wait()
    at = time.monotonic()
    return said, 1000 * (await _begun(rig, status.attempt + 1) - at)


async def _ends(rig: Rig, name: str) -> dict[str, Any]:
    """Start a job that fails; its end in the agent's words."""
    await rig.act(name, "start")
    status = await rig.reach(name, JobState.FAILED, within=120)
    found = status.diagnosis
    assert found is not None
    return {"reason": status.reason, "cause": found.cause, "evidence": found.evidence, "advice": found.advice}


def _spread(values: list[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(values), 1), "max": round(max(values), 1)}
