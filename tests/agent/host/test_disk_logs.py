"""Logs within their caps: a flood, earlier attempts, and file systems that give nothing back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from pipeline.agent.attempts.logs import last_line, page, search
from pipeline.agent.host import holes
from pipeline.agent.host.holes import allocated
from pipeline.agent.host.log_caps import LOOK_MAX_S, LogCaps
from pipeline.protocol import DiskPolicy, JobSpec, JobState, LogPage, RestartPolicy
from tests.agent.mounts import MIB, ramfs, tmpfs
from tests.agent.rig import NEVER, Rig, shell, until

BLOCK = 4 * MIB
FLOOD = """
import os, sys, time
lines = b"".join(b"line %09d of a block, and words that nobody will ever read\\n" % number for number in range(70000))
block = bytearray(lines[: 4 * 2**20 - 1] + b"\\n")
began, blocks = time.monotonic(), int(sys.argv[1])
for number in range(blocks):
    block[:13] = b"block %06d\\n" % number
    if os.write(1, block) != len(block):
        sys.exit("a write was cut short")
    time.sleep(max(0, began + (number + 1) * len(block) / 300e6 - time.monotonic()))
rate = blocks * len(block) / (time.monotonic() - began)
print("wrote at", int(rate), "bytes a second", flush=True)
"""


@pytest.fixture
def logs_can_be_cut(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    probe.write_bytes(b"x" * 200_000)
    try:
        holes.give_back(probe, 65536)
    except OSError as error:
        pytest.skip(f"the temporary folder's file system punches no holes: {error.strerror}")


async def _page(rig: Rig, offset: int, limit: int, attempt: int = 1) -> LogPage:
    answer = await rig.client.get(
        "/v1/jobs/flood/log", params={"attempt": attempt, "offset": offset, "limit": limit}
    )  # fmt: skip
    return msgspec.json.decode(answer.content, type=LogPage)


async def test_a_flood_stays_within_its_cap_and_notices_nothing(rig: Rig) -> None:
    """2 GB at 300 MB/s into a disk of 1.2 GB."""
    blocks, cap = 480, 128 * MIB
    with tmpfs(rig.workdir / "jobs", 1200 * MIB):
        await rig.start()
        flood = JobSpec("flood", "demo", ("python3", "-I", "-S", "-c", FLOOD, str(blocks)), restart=NEVER)
        await rig.apply(flood, disk=DiskPolicy(log=cap))
        log, most, pages = rig.folder("flood") / "log", 0, 0
        await until(log.exists)
        while (await rig.status("flood")).state not in (JobState.DONE, JobState.FAILED):
            most = max(most, allocated(log))
            found = await _page(rig, 0, 65536)
            assert b"\0" not in found.data
            assert found.offset == found.first
            pages += found.first > 0
            await asyncio.sleep(0.02)
        status = await rig.status("flood")
        assert status.state is JobState.DONE, (status.reason, last_line(log))
        assert pages > 0
        rate = int(last_line(log).split()[2])
        # A second's worth, once, before the pace is known; then the looks come as fast as the log grows.
        assert most < cap + 2.5 * rate, f"{most / 1e6:.0f} MB"
        size = blocks * BLOCK + len(last_line(log)) + 1
        await until(lambda: allocated(log) <= cap, what="the log is back within its cap")
        end = await _page(rig, -1000, 1000)
        assert end.size == log.stat().st_size == size
        assert end.data.endswith(b"bytes a second\n")
        assert end.first > size - cap - MIB
        number = end.first // BLOCK + 1
        whole = await _page(rig, number * BLOCK, 13)
        assert whole.data == b"block %06d\n" % number
        assert search(log, f"block {number:06d}", 0, 5, 1 << 30)[0] == (number * BLOCK,)
        print(f"{rate / 1e6:.0f} MB/s, at most {most / 1e6:.0f} MB of a cap of {cap / 1e6:.0f} MB")
        if rate < 200e6:
            pytest.skip(f"all held, but this machine was too busy to write 200 MB/s: {rate / 1e6:.0f} MB/s")


async def test_earlier_attempts_keep_their_end_and_the_oldest_go_first(rig: Rig, logs_can_be_cut: None) -> None:
    await rig.start()
    script = "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 7"
    again = RestartPolicy(when="on-failure", limit=5, backoff_s=0.01)
    await rig.apply(
        shell("flood", script, restart=again), disk=DiskPolicy(log=10**9, old_logs=1_500_000, old_attempts=4)
    )
    await rig.reach("flood", JobState.FAILED)
    size = 1_000_009
    assert (await rig.status("flood")).attempt == 6
    await until(lambda: not rig.folder("flood", 1).exists(), what="the oldest attempt goes")
    await until(lambda: allocated(rig.folder("flood", 3) / "log") == 0, what="an old log is given back")
    assert allocated(rig.folder("flood", 6) / "log") >= size
    assert allocated(rig.folder("flood", 5) / "log") >= size
    assert 0 < allocated(rig.folder("flood", 4) / "log") <= 500_000
    for number in range(2, 7):
        assert (await rig.recorded("flood", number)).exit_code == 7
    fourth, third, first = [await _page(rig, -100, 100, number) for number in (4, 3, 1)]
    assert fourth.size == size
    assert fourth.data.endswith(b"the end\n")
    assert 500_000 <= fourth.first < size
    for gone in (third, first):  # the folder of the first is no more: the journal knows how long its log was
        assert (gone.offset, gone.size, gone.data, gone.first) == (size, size, b"", size)
    detail = (await rig.client.get("/v1/jobs/flood")).json()
    assert [attempt["exit_code"] for attempt in detail["attempts"]] == [7] * 6


async def test_the_logs_of_a_job_that_left_the_plan_stay_within_the_cap(rig: Rig, logs_can_be_cut: None) -> None:
    await rig.start()
    script = "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo the end"
    await rig.apply(shell("flood", script), shell("other", "true"))
    await rig.reach("flood", JobState.DONE)
    log = rig.folder("flood") / "log"
    assert allocated(log) >= 1_000_009
    await rig.apply(shell("other", "true"), disk=DiskPolicy(old_logs=500_000))
    await rig.end()
    await rig.start()  # looks at once, not only within a minute
    await until(lambda: 0 < allocated(log) <= 500_000, what="the log is cut")
    assert last_line(log) == "the end"
    assert (await rig.recorded("flood")).exit_code == 0


def test_the_faster_a_log_grows_the_sooner_it_is_looked_at(tmp_path: Path, logs_can_be_cut: None) -> None:
    caps, log = LogCaps(), tmp_path / "log"
    assert caps.trim([log], MIB) == LOOK_MAX_S  # not there yet
    log.write_bytes(b"x" * 100_000)
    assert caps.trim([log], MIB) == LOOK_MAX_S
    with log.open("ab") as file:
        file.write(b"x" * 600_000)
    assert caps.trim([log], MIB) < LOOK_MAX_S
    with log.open("ab") as file:
        file.write(b"x" * 600_000)
    caps.trim([log], MIB)
    assert allocated(log) <= MIB
    assert page(log, 0, 1).first > 0
    assert caps.remarks == ()


async def test_where_nothing_can_be_given_back_it_is_said_and_nothing_is_harmed(rig: Rig, tmp_path: Path) -> None:
    with ramfs(rig.workdir / "jobs"):
        await rig.start()
        script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end; sleep 60"
        await rig.apply(shell("flood", script), disk=DiskPolicy(log=MIB, old_logs=MIB))
        log = rig.folder("flood") / "log"
        await until(lambda: last_line(log) == "the end")
        remark = "a log that grows too large is not cut here: Operation not supported"
        await until(lambda: _remarked(rig, remark))
        whole = await _page(rig, 0, 100)
        assert (whole.first, whole.size, whole.data) == (0, 3_000_009, b"x" * 100)
        assert rig.log().count("is not cut here") == 1 + rig.log().count("hoststats: a log")
        # The log of an attempt that has ended is nobody's any more: it can go as a whole.
        await rig.act("flood", "restart")
        await until(lambda: not log.exists(), what="the log of the attempt before is gone")
        gone = await _page(rig, 0, 100)
        assert (gone.first, gone.size, gone.data) == (3_000_009, 3_000_009, b"")
        await rig.act("flood", "kill")
        await rig.reach("flood", JobState.STOPPED)


async def _remarked(rig: Rig, remark: str) -> bool:
    host = (await rig.state()).beat.host
    return host is not None and host.remarks.count(remark) == 1
