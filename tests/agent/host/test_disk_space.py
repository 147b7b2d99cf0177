"""Free space: how fast it goes, and file systems that do not answer."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from pipeline.agent import paths
from pipeline.agent.host import disks
from pipeline.agent.host.disks import Disk, Rate
from pipeline.agent.host.hoststats import HostSampler
from pipeline.agent.paths import on_network
from pipeline.agent.supervisor import Supervisor
from pipeline.protocol import DiskPolicy, Event
from tests.agent.mounts import MIB, hung, tmpfs
from tests.agent.rig import NEVER, Rig, shell
from tests.agent.rig import until as until_async
from tests.agent.sensing import until

GB = 10**9
HOUR = 3600.0

# --- The rate --------------------------------------------------------------------------------------------------------


def rate(free: list[float], every: float = 2.0) -> Rate:
    found = Rate()
    for number, value in enumerate(free):
        found.add(number * every, int(value * GB))
    return found


def test_hours_left_at_a_steady_rate() -> None:
    left = rate([1000 - second * 2 / 100 for second in range(600)]).left_s()
    assert left == pytest.approx((1000 - 11.8) * 100, rel=0.01)


def test_a_disk_that_does_not_shrink_lasts() -> None:
    assert rate([1000.0] * 600).left_s() is None
    assert rate([1000 + second for second in range(600)]).left_s() is None


def test_nothing_is_said_before_two_minutes() -> None:
    assert rate([]).left_s() is None
    assert rate([1000 - second for second in range(55)]).left_s() is None
    assert rate([1000 - second for second in range(70)]).left_s() is not None


def test_bursts_jitter_and_one_large_deletion_change_little() -> None:
    chance = random.Random(7)
    steady = rate([1000 - second / 50 for second in range(600)]).left_s()
    assert steady is not None
    bursts = rate([1000 - (second // 20) * 20 / 50 + chance.gauss(0, 0.02) for second in range(600)]).left_s()
    assert bursts == pytest.approx(steady, rel=0.1)
    jump = rate([1000 - second / 50 + (800 if second > 300 else 0) for second in range(600)]).left_s()
    assert jump == pytest.approx(steady + 800 * 100, rel=0.1)


def test_the_rate_is_that_of_the_last_ten_minutes() -> None:
    slow = [1000 - second / 1000 for second in range(1800)]
    fast = [slow[-1] - second / 10 for second in range(330)]
    left = rate(slow + fast).left_s()
    assert left == pytest.approx(fast[-1] * 20, rel=0.05)


# --- File systems that do not answer ---------------------------------------------------------------------------------


def test_a_mount_that_hangs_holds_nobody_up_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "HUNG_S", 0.5)
    mount = tmp_path / "hung"
    with hung(mount) as handle:
        assert on_network(str(mount / "run"))  # the journal of a work directory there is kept elsewhere
        sampler = HostSampler(Disk(mount))
        began = time.monotonic()
        for _ in range(20):
            sample = sampler.sample()
        assert time.monotonic() - began < 2  # one wait of 50 ms, not twenty
        assert sample.disk_free is None
        until(lambda: any("has not answered for" in remark for remark in sampler.sample().remarks))
        assert sum(thread.name == "statvfs" for thread in threading.enumerate()) == 1
        os.close(handle)  # its server dies: the question comes back as an error
        until(lambda: any("cannot be read" in remark for remark in sampler.sample().remarks))
    until(lambda: sampler.sample().disk_free is not None)


def test_the_last_figures_stand_while_a_mount_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A mount that has answered cannot be made to hang afterwards here, so the system call is.
    answer, real = threading.Event(), os.statvfs
    sampler = HostSampler(Disk(tmp_path))
    before = sampler.sample().disk_free
    assert before is not None
    monkeypatch.setattr(disks, "HUNG_S", 0.3)
    monkeypatch.setattr(os, "statvfs", lambda path: answer.wait(60) and real(path))
    remark = until(lambda: next((each for each in sampler.sample().remarks if "has not answered" in each), ""))
    assert "its figures are from before" in remark
    assert sampler.sample().disk_free == before
    answer.set()
    until(lambda: not any("has not answered" in each for each in sampler.sample().remarks))


def test_a_folder_that_is_made_later_is_asked_for_where_it_will_be(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "cache", 8 * MIB) as cache:
        disk = Disk(cache / "huggingface" / "hub", made_later=True)
        space = disk.look()
        assert space is not None
        assert space.total == 8 * MIB
        assert Disk(cache / "huggingface").look() is None


# --- Network file systems --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        ("ext4", False), ("xfs", False), ("overlay", False), ("tmpfs", False), ("zfs", False), ("btrfs", False),
        ("nfs", True), ("nfs4", True), ("fuse.sshfs", True), ("fuse.juicefs", True), ("fuseblk", True),
        ("lustre", True), ("ceph", True), ("9p", True), ("virtiofs", True),
    ],
)  # fmt: skip
def test_the_journal_and_its_ballast_lie_on_local_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, network: bool
) -> None:
    work = tmp_path / "shared space" / "run"
    work.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    shared = str(work.parent).replace(" ", "\\040")
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/export {shared} {kind} rw 0 0\nx {shared}2 ext4 rw 0 0\n")
    monkeypatch.setattr(paths, "MOUNTS", str(mounts))
    assert paths.mount_point(str(work / "a")) == str(work.parent)
    assert on_network(str(work)) is network
    assert not on_network(f"{work.parent}2/run")
    runtime = Path(paths.runtime_dir(work))
    supervisor = Supervisor(work)
    try:
        assert supervisor.ballast.hold() > 0
        supervisor.board.tell("agent", "journaled")
        here, there = (runtime, work / "agent") if network else (work / "agent", runtime)
        assert {"journal.db", "journal.db-wal", "ballast"} <= {entry.name for entry in here.iterdir()}
        assert not there.exists() or not list(there.glob("journal*")) + list(there.glob("ballast"))
        assert Path(paths.socket_path(work)).parent == runtime
    finally:
        supervisor.figures.close()
        supervisor.board.store.close()
        supervisor.senses.close()
        shutil.rmtree(runtime)


# --- The warning -----------------------------------------------------------------------------------------------------


async def test_a_short_disk_is_an_event_and_a_figure(rig: Rig) -> None:
    await rig.start()
    free = await until_async(lambda: _host(rig, "disk_free"))
    total = await _host(rig, "disk_total")
    await rig.apply(shell("job", "true", restart=NEVER), disk=DiskPolicy(warn_share=min(0.99, free / total + 0.05)))
    event = await until_async(lambda: _event(rig, "the disk is short"))
    assert event.kind == "host"
    assert "GB free" in event.text
    assert await _host(rig, "disk_short")
    await rig.apply(shell("job", "true", restart=NEVER), disk=DiskPolicy(warn_share=0.0, warn_left_s=0.0))
    assert (await rig.state()).beat.host is not None


async def _host(rig: Rig, figure: str) -> float:
    host = (await rig.state()).beat.host
    return float(getattr(host, figure) or 0) if host is not None else 0.0


async def _event(rig: Rig, words: str) -> Event | None:
    return next((event for event in (await rig.state()).events if words in event.text), None)
