"""Jobs that end on a full disk: believed on evidence, no restart spent, started again when there is room."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import httpx
import pytest

from pipeline.agent.attempts.identity import send
from pipeline.agent.diagnosis.causes import Evidence, diagnose
from pipeline.agent.host.disks import Disks, Space
from pipeline.agent.rules.full_disks import DiskNeed, Filled, disks_of, for_room, fullest, low, need_after, says_so
from pipeline.protocol import JobSpec, JobState, RestartPolicy
from tests.agent.mounts import MIB, fill, tmpfs
from tests.agent.rig import NEVER, Rig, shell, until

GB = 10**9
PREP = JobSpec("prep:B5", "prep", ("x",))
TRACEBACK = b"""step 1
Traceback (most recent call last):
  File "write.py", line 3, in <module>
    file.write(data)
OSError: [Errno 28] No space left on device: '/scratch/shard'
"""
ONCE = RestartPolicy(when="on-failure", limit=1, backoff_s=30.0, backoff_max_s=30.0)

# --- Evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "said", "found"),
    [
        (TRACEBACK, "", (True, True)),
        (b"tar: write error: No space left on device\n", "", (True, False)),
        (b"no space on this device, said a row\n", "", (False, False)),
        (TRACEBACK + b"went on without it\n" * 60, "", (True, True)),
        (TRACEBACK.replace(b"Errno 28] No space left on device", b"Errno 2] No such file"), "", (False, False)),
        (b"OSError: [Errno 122] Disk quota exceeded\n", "", (False, False)),
        (b"", "cannot start: [Errno 28] No space left on device: '/work/jobs/a/1'", (True, True)),
        (b"", "cannot record the attempt in /work/jobs/a/1: No space left on device", (True, True)),
    ],
)  # fmt: skip
def test_last_words_that_tell_of_a_full_disk(log: bytes, said: str, found: tuple[bool, bool]) -> None:
    assert says_so(log, said) == found


def test_what_is_low_follows_the_size_of_the_disk() -> None:
    assert low(Space(400 * 10**6, 2000 * GB))
    assert not low(Space(600 * 10**6, 2000 * GB))
    assert low(Space(MIB // 2, 32 * MIB))
    assert not low(Space(MIB, 32 * MIB))
    assert low(Space(500 * GB, 2000 * GB, inodes_free=3, inodes_total=10**6))


def test_a_job_writes_to_more_than_the_work_directory(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "scratch", 8 * MIB) as scratch:
        log = TRACEBACK.replace(b"/scratch/", os.fsencode(scratch) + b"/")
        environment = {"HF_HOME": "/data/huggingface", "TMPDIR": str(tmp_path / "temporary")}
        (tmp_path / "spec.json").write_text(json.dumps({"env": environment}))
        disks = Disks(tmp_path)
        found = [str(disk.path) for disk in disks_of(disks, tmp_path, log)]
        assert found == [
            str(tmp_path), "/data/huggingface/hub", "/data/huggingface/datasets", str(tmp_path / "temporary"),
            str(scratch),
        ]  # fmt: skip
        assert fullest(disks_of(disks, tmp_path, log)) is None
        fill(scratch)
        filled = fullest(disks_of(disks, tmp_path, log))
        assert filled is not None
        assert filled.path == str(scratch)
        assert filled.brim
        assert filled.words.endswith(f"of 8 MB free on the disk of {scratch}")


def test_a_job_that_failed_without_a_word_on_a_disk_at_its_brim() -> None:
    filled = "0 MB of 2,000 GB free on the disk of /work"
    state, reason, diagnosis = diagnose(Evidence(PREP, exit_code=1, log_tail=b"step 1\n", filled=filled, brim=True))
    assert (state, reason) == (JobState.FAILED, "probably disk full")
    assert diagnosis is not None
    assert (diagnosis.cause, diagnosis.evidence[0]) == ("disk-full", filled)
    assert "by itself when there is room" in diagnosis.advice
    low_only = diagnose(Evidence(PREP, exit_code=1, log_tail=b"step 1\n", filled=filled))
    assert low_only[1] == "exit code 1, cause unknown"
    other = TRACEBACK.replace(b"OSError: [Errno 28] No space left on device", b"ValueError: bad row")
    assert diagnose(Evidence(PREP, exit_code=1, log_tail=other, filled=filled, brim=True))[1].startswith("ValueError")
    overcome = diagnose(Evidence(PREP, exit_code=1, log_tail=other + b"went on\n" * 20, filled=filled, brim=True))
    assert overcome[1] == "probably disk full"
    assert diagnose(Evidence(PREP, signal=9, filled=filled, brim=True))[1] == "SIGKILL, sender unknown"


def test_what_is_waited_for_grows_each_time_and_never_beyond_half_of_the_disk() -> None:
    large = Filled("/work", Space(0, 2000 * GB))
    need = need_after(large, None)
    assert need == DiskNeed("/work", GB)
    for expected in (2, 4, 8):
        need = need_after(large, need)
        assert need.free == expected * GB
    for _ in range(20):
        need = need_after(large, need)
    assert need.free == 1000 * GB
    assert need_after(large, DiskNeed("/elsewhere", 64 * GB)).free == GB
    assert need_after(Filled("/work", Space(0, 100 * MIB)), None).free == 5 * MIB
    inodes = need_after(Filled("/work", Space(5 * GB, 10 * GB, 0, 100_000)), None)
    assert inodes.inodes == 1000


def test_the_words_of_a_job_that_waits() -> None:
    need = DiskNeed("/work", GB, 1000)
    assert for_room(need, Space(10**8, 2000 * GB)) == "waits for disk: 100 MB free, needs 1.0 GB (/work)"
    assert for_room(need, Space(2 * GB, 2000 * GB, 3, 10**6)) == (
        "waits for disk: room for 3 files, needs 1,000 (/work)"
    )
    assert for_room(need, None).endswith("has not been looked at yet")
    assert for_room(need, Space(GB, 2000 * GB, 1000, 10**6)) == ""


# --- The whole agent -------------------------------------------------------------------------------------------------


WRITES = "import sys; file = open('big', 'wb'); [file.write(bytes(10**6)) for _ in range(20)]; file.flush()"


async def test_a_job_that_fills_the_disk_waits_and_starts_by_itself_when_there_is_room(small_disk: Rig) -> None:
    rig = small_disk
    filler = fill(rig.workdir, leave=10 * MIB)
    job = JobSpec("writes", "demo", ("python3", "-I", "-S", "-c", WRITES), restart=ONCE)
    await rig.apply(job)
    status = await rig.says("writes", "waits for disk: ")
    assert status.state is JobState.QUEUED
    assert "free, needs 3 MB" in status.reason
    assert (status.attempt, status.restarts) == (1, 0)
    assert status.diagnosis is not None
    assert status.diagnosis.cause == "disk-full"
    texts = [event.text for event in (await rig.state()).events]
    assert any(text.startswith("writes failed: ") and "disk full" in text for text in texts)

    # A little room is not enough: it does not go back and forth.
    os.truncate(filler, filler.stat().st_size - MIB)
    agent = rig.holder("agent")
    assert agent is not None
    send(agent, 9)
    await rig.replaced("agent", agent, within=15)
    looks = {await _looked_at(rig)}
    await until(lambda: _seen(rig, looks))
    status = await rig.status("writes")
    assert (status.state, status.attempt) == (JobState.QUEUED, 1)
    assert "waits for disk: " in status.reason
    assert "needs 3 MB" in status.reason

    filler.unlink()
    assert (await rig.reach("writes", JobState.DONE)).attempt == 2
    assert (await rig.status("writes")).restarts == 0


async def _looked_at(rig: Rig) -> float:
    with contextlib.suppress(httpx.TransportError):
        host = (await rig.state()).beat.host
        return host.at if host is not None else 0.0
    return 0.0


async def _seen(rig: Rig, looks: set[float]) -> bool:
    """Whether the agent has looked at its host three times since."""
    looks.add(await _looked_at(rig))
    return len(looks - {0.0}) > 3


async def test_a_job_that_cannot_even_be_started_waits_too(small_disk: Rig) -> None:
    rig = small_disk
    filler = fill(rig.workdir)
    await rig.apply(shell("starts", "echo here", restart=ONCE), shell("never", "echo here", restart=NEVER))
    status = await rig.says("starts", "waits for disk: ")
    assert status.state is JobState.QUEUED
    failed = await rig.reach("never", JobState.FAILED)  # its policy is never to start again
    assert failed.reason == "disk full"
    filler.unlink()
    await rig.reach("starts", JobState.DONE)
    assert (await rig.status("never")).state is JobState.FAILED


async def test_an_operator_may_start_it_all_the_same(small_disk: Rig) -> None:
    rig = small_disk
    fill(rig.workdir, leave=10 * MIB)
    await rig.apply(JobSpec("writes", "demo", ("python3", "-I", "-S", "-c", WRITES), restart=ONCE))
    await rig.says("writes", "waits for disk: ")
    reply = await rig.act("writes", "start")
    assert reply.done
    assert "starting writes although waits for disk" in reply.text
    await rig.attempted("writes", 2)
