"""Admission with real processes in a real cgroup: a full page cache stops nothing, and ten at once do not all start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.protocol import LIVE, Event, JobState, Resources
from tests.agent.boxes import NO_CGROUPS, box, run_in, start_in
from tests.agent.rig import NEVER, Rig, shell, until

S = JobState
MIB = 1 << 20
JOB = 100 * MIB


@pytest.fixture
def limited() -> Iterator[Path]:
    """A cgroup of 400 MiB for a whole agent and its jobs; three jobs of 100 MiB fit beside the agent."""
    with box("400M") as folder:
        yield folder


@pytest.mark.parametrize("by", ["a stranger", "a job whose cgroup has gone"])
async def test_a_full_page_cache_admits_all_the_same(rig: Rig, limited: Path, by: str) -> None:
    await start_in(rig, limited)
    code = (
        f"f = open({str(rig.workdir / 'streamed')!r}, 'wb')\n"
        "for _ in range(300): f.write(bytes(1 << 20))\n"
        "f.flush(); os.fsync(f.fileno())"
    )
    if by == "a stranger":
        with run_in(limited, code) as writer:
            await until(lambda: writer.poll() is not None, within=60)
            assert writer.returncode == 0
    else:
        script = rig.workdir / "stream.py"
        script.write_text(f"import os\n{code}")
        await rig.apply(shell("w", f"exec {sys.executable} -I -S {script}", restart=NEVER))
        await rig.reach("w", S.DONE, within=60)
    charged = int((limited / "memory.usage_in_bytes").read_text())
    if charged < 300 * MIB:
        pytest.skip("the temporary folder's file system leaves nothing in the page cache")
    await rig.apply(shell("a", "exit 0", resources=Resources(memory=200 * MIB), restart=NEVER))
    await rig.reach("a", S.DONE)
    assert int((limited / "memory.usage_in_bytes").read_text()) > 200 * MIB, "the cache is there all the while"


@pytest.mark.parametrize("before", ["", NO_CGROUPS], ids=["own cgroups", "one cgroup"])
async def test_of_ten_jobs_at_once_only_those_run_that_fit(rig: Rig, limited: Path, before: str) -> None:
    await start_in(rig, limited, before)
    take = f"{sys.executable} -I -S -c 'held = bytes([1]) * {JOB}; import time; time.sleep(0.5)'"
    names = [f"j{number}" for number in range(10)]
    # Asked for in one request, without a look at the host in between.
    await rig.apply(
        *(shell(name, f"exec {take}", resources=Resources(memory=JOB + 10 * MIB), restart=NEVER) for name in names)
    )
    first = await rig.state()
    queued = [status.reason for status in first.jobs.values() if status.state is S.QUEUED]
    assert len(queued) >= 6 and all("needs 115 MB" in reason for reason in queued)
    for name in names:
        await rig.reach(name, S.DONE, within=90)
    state = await rig.state()
    assert 1 <= most_at_once(state.events) <= 3
    assert state.beat.host is not None and state.beat.host.oom_kills == 0


def most_at_once(events: tuple[Event, ...]) -> int:
    """How many jobs had a process at one time."""
    live: set[str] = set()
    most = 0
    for event in sorted(events, key=lambda event: event.seq):
        if event.status is None:
            continue
        (live.add if event.status.state in LIVE else live.discard)(event.job)
        most = max(most, len(live))
    return most


async def test_what_waits_starts_when_there_is_room(rig: Rig, limited: Path) -> None:
    await start_in(rig, limited)
    half = Resources(memory=200 * MIB)
    await rig.apply(
        shell("a", "exec sleep 600", resources=half, restart=NEVER),
        shell("b", "exec sleep 600", resources=half, restart=NEVER),
    )
    await rig.reach("a", S.RUNNING)
    status = await rig.says("b", " left")
    assert status.state is S.QUEUED and status.reason.startswith("needs 210 MB, ")
    await rig.act("a", "stop")
    await rig.reach("b", S.RUNNING)
