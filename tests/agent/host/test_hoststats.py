from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from pipeline.agent.host import cgroups
from pipeline.agent.host.cgroups import Cgroup, Level, locate, memory_levels
from pipeline.agent.host.disks import Disk
from pipeline.agent.host.gpus import GpuWatch
from pipeline.agent.host.hoststats import HostSampler, machine_memory, oom_kill_count
from pipeline.protocol import GpuSample
from tests.agent.boxes import run_in
from tests.agent.sensing import python, until

MIB = 1 << 20

V1_MOUNTS = """\
25 20 0:22 / /proc rw - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 /docker/abc {cpu} rw,relatime master:11 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc {memory} rw,relatime master:12 - cgroup cgroup rw,memory
41 31 0:38 / {unified} rw,relatime - cgroup2 cgroup2 rw
"""


def test_the_cgroup_of_a_container_under_version_1_is_its_mount(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    (memory / "job").mkdir(parents=True)
    mounts = V1_MOUNTS.format(cpu=tmp_path / "cpu", memory=memory, unified=tmp_path / "unified")
    membership = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"
    assert locate("memory", membership, mounts) == Cgroup(1, memory, memory)
    assert locate("cpuacct", membership, mounts) == Cgroup(1, tmp_path / "cpu", tmp_path / "cpu")
    assert locate("memory", "5:memory:/docker/abc/job\n", mounts) == Cgroup(1, memory / "job", memory)
    # In another cgroup namespace, the path may not lie under what is mounted.
    assert locate("memory", "5:memory:/../../elsewhere\n", mounts) == Cgroup(1, memory, memory)
    assert locate("memory", "5:memory:/docker/abcdef\n", mounts) == Cgroup(1, memory, memory)


def test_the_cgroup_under_version_2(tmp_path: Path) -> None:
    top = tmp_path / "cg roup"
    (top / "user" / "job").mkdir(parents=True)
    mounts = f"30 23 0:26 / {str(top).replace(' ', chr(92) + '040')} rw shared:4 - cgroup2 cgroup2 rw\n"
    assert locate("memory", "0::/user/job\n", mounts) == Cgroup(2, top / "user" / "job", top)
    assert locate("memory", "0::/\n", mounts) == Cgroup(2, top, top)


def test_no_cgroup_where_none_is_mounted() -> None:
    assert locate("memory", "", "") is None
    assert locate("memory", "0::/\n", "25 20 0:22 / /proc rw - proc proc rw\n") is None
    assert locate("memory", "5:memory:/\n", "25 20 0:22 / /proc rw - proc proc rw\nnonsense") is None


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_limits_of_version_2_are_found_upwards_and_caches_do_not_count(tmp_path: Path) -> None:
    stat = f"anon 1\ninactive_file {300 * MIB}\nactive_file 5\nslab_reclaimable {40 * MIB}\nslab {90 * MIB}\n"
    _write(tmp_path, memory__max=f"{4000 * MIB}\n", memory__current=f"{1000 * MIB}\n", memory__stat=stat)
    _write(tmp_path / "pod", memory__max="max\n", memory__current=f"{900 * MIB}\n", memory__stat=stat)
    _write(
        tmp_path / "pod" / "job", memory__max=f"{2000 * MIB}\n", memory__high=f"{1500 * MIB}\n",
        memory__current=f"{800 * MIB}\n", memory__stat=stat, memory__events="low 0\noom 2\noom_kill 1\n",
        cpu__max="150000 100000\n", memory__pressure="some avg10=3.25 avg60=0.00 avg300=0.00 total=9\nfull avg10=0\n",
    )  # fmt: skip
    group = Cgroup(2, tmp_path / "pod" / "job", tmp_path)
    assert memory_levels(group) == (Level(1500 * MIB, 460 * MIB), Level(4000 * MIB, 660 * MIB))
    assert cgroups.oom_kills(group) == 1
    assert cgroups.cpu_quota(group) == 1.5
    assert cgroups.pressure(group.folder / "memory.pressure") == 3.25


def test_limits_of_version_1(tmp_path: Path) -> None:
    stat = f"cache 1\ninactive_file 1\ntotal_inactive_file {200 * MIB}\n"
    unlimited = "9223372036854771712\n"
    _write(
        tmp_path, memory__limit_in_bytes=f"{1000 * MIB}\n", memory__usage_in_bytes=f"{700 * MIB}\n", memory__stat=stat,
        cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n",
    )  # fmt: skip
    _write(tmp_path / "job", memory__limit_in_bytes=unlimited, memory__usage_in_bytes="5\n", memory__stat=stat)
    group = Cgroup(1, tmp_path / "job", tmp_path)
    assert memory_levels(group) == (Level(1000 * MIB, 500 * MIB),)
    assert cgroups.cpu_quota(group) is None
    assert cgroups.oom_kills(group) is None


def test_a_cgroup_without_a_memory_controller_has_no_levels(tmp_path: Path) -> None:
    assert memory_levels(Cgroup(2, tmp_path, tmp_path)) == ()
    assert cgroups.pressure(tmp_path / "memory.pressure") is None


# --- The real ones of this machine ----------------------------------------------------------------------------------


def test_a_real_oom_kill_moves_the_counter(child_cgroup: Path) -> None:
    (child_cgroup / "memory.limit_in_bytes").write_text("80M")
    group = Cgroup(1, child_cgroup, child_cgroup)
    with run_in(child_cgroup, "print('ready', flush=True); sys.stdin.read()") as quiet:
        assert quiet.stdout is not None
        assert quiet.stdout.readline() == b"ready\n"
        before = oom_kill_count(quiet.pid)
        assert before == 0
        with run_in(child_cgroup, "held = [bytearray(1 << 20) for _ in range(200)]") as greedy:
            assert greedy.wait(30) == -9
        assert oom_kill_count(quiet.pid) == 1
        assert cgroups.oom_kills(group) == 1
        (level,) = memory_levels(group)
        assert level.limit == 80 * MIB
        quiet.kill()
        until(lambda: oom_kill_count(quiet.pid) is None)  # a zombie: it has left its cgroup


def test_a_full_page_cache_is_not_use(child_cgroup: Path, tmp_path: Path) -> None:
    (child_cgroup / "memory.limit_in_bytes").write_text("400M")
    file = tmp_path / "streamed"
    code = (
        f"f = open({str(file)!r}, 'wb')\nfor _ in range(150): f.write(bytes(1 << 20))\nf.flush(); os.fsync(f.fileno())"
    )
    with run_in(child_cgroup, code) as writer:
        assert writer.wait(60) == 0
    charged = int((child_cgroup / "memory.usage_in_bytes").read_text())
    if charged < 100 * MIB:
        pytest.skip("the temporary folder's file system leaves nothing in the page cache")
    (level,) = memory_levels(Cgroup(1, child_cgroup, child_cgroup))
    assert level.used < 60 * MIB


def test_oom_kills_of_a_process_that_is_gone_are_unknown() -> None:
    with python("print('ready', flush=True); input()") as process:
        assert oom_kill_count(process.pid) == oom_kill_count()
    assert oom_kill_count(process.pid) is None


def test_a_sample_of_this_machine(tmp_path: Path) -> None:
    gpu = GpuSample(0, "a GPU", 1, 2, 3.0)
    sample = HostSampler(Disk(tmp_path)).sample((gpu,), ("something is missing",))
    total, available = machine_memory()
    assert 0 < sample.memory_used < sample.memory_limit <= total
    assert sample.memory_source in {"cgroup v1", "cgroup v2", "MemAvailable"}
    assert available <= total
    assert 1 <= sample.cpus <= (os.cpu_count() or 1)
    assert 0 <= sample.cpu_percent <= 100
    assert sample.disk_free is not None
    assert sample.disk_total is not None
    assert 0 < sample.disk_free <= sample.disk_total
    assert sample.gpus == (gpu,)
    assert "something is missing" in sample.remarks
    assert abs(sample.at - time.time()) < 5


def test_memory_that_a_process_holds_is_use(child_cgroup: Path) -> None:
    (child_cgroup / "memory.limit_in_bytes").write_text("400M")
    code = """
held = bytearray(100 << 20)
held[::4096] = b"x" * len(held[::4096])
print("ready", flush=True)
sys.stdin.read()
"""
    with run_in(child_cgroup, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (level,) = memory_levels(Cgroup(1, child_cgroup, child_cgroup))
        assert 100 * MIB <= level.used < 150 * MIB
        process.kill()


def test_busy_cores_are_seen(tmp_path: Path) -> None:
    sampler = HostSampler(Disk(tmp_path))
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass
    sample = sampler.sample()
    assert sample.cpu_percent >= 60 / sample.cpus


def test_a_missing_work_directory_is_a_remark_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sampler = HostSampler(Disk(tmp_path / "gone"))
    with caplog.at_level(logging.INFO):
        samples = [sampler.sample() for _ in range(3)]
    for sample in samples:
        assert sample.disk_free is None
        assert any("gone" in remark and "No such file" in remark for remark in sample.remarks)
    assert sum("gone" in record.getMessage() for record in caplog.records) == 1


def test_without_a_gpu_the_watch_says_why_and_stays_empty() -> None:
    watch = GpuWatch(interval_s=0.05)
    try:
        assert watch.wait_first(20)
        if watch.latest():
            gpu = watch.latest()[0]
            assert 0 <= gpu.memory_used <= gpu.memory_total
            assert gpu.name
        else:
            (remark,) = watch.remarks()
            assert remark.startswith("no GPU figures: ")
    finally:
        watch.stop()
