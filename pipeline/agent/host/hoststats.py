"""The container's own state: memory against its limit, pressure, OOM kills, CPU, disk."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from pathlib import Path

from pipeline.agent.host import cgroups
from pipeline.agent.host.disks import Disk
from pipeline.agent.host.procs import read_proc
from pipeline.protocol import GpuSample, HostSample

_log = logging.getLogger(__name__)


class HostSampler:
    """Samples the host. What cannot be read is a remark in the sample, and is logged once."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._logged: set[str] = set()
        self._remarks: list[str] = []
        self._cpus, self._quota = _cpus()
        self._cpu_before = self._cpu_now()
        self._cpu_percent = 0.0

    def sample(
        self, gpus: tuple[GpuSample, ...] = (), remarks: tuple[str, ...] = (), kills_in_jobs: int = 0
    ) -> HostSample:
        """One look, in a few milliseconds whatever hangs. ``gpus`` and ``remarks`` are passed through.

        ``kills_in_jobs`` are OOM kills that this process's own cgroup does not count: they were in jobs' cgroups.
        """
        self._remarks = list(remarks)
        limit, used, source = self._memory()
        space = self._disk.look()
        if self._disk.trouble:
            self._remark(self._disk.trouble)
        some = self._memory_some()
        if some is None:
            self._remark("memory pressure is not measured here (no PSI)")
        oom_kills = oom_kill_count()
        if oom_kills is not None:
            oom_kills += kills_in_jobs
        else:
            self._remark("OOM kills are not counted here: no memory cgroup")
        sample = HostSample(
            at=time.time(),
            cpus=self._cpus,
            cpu_percent=self._cpu(),
            memory_used=used,
            memory_limit=limit,
            memory_source=source,
            memory_some=some,
            oom_kills=oom_kills,
            disk_free=space.free if space is not None else None,
            disk_total=space.total if space is not None else None,
            disk_left_s=self._disk.rate.left_s(),
            inodes_free=space.inodes_free if space is not None else None,
            inodes_total=space.inodes_total if space is not None else None,
            gpus=gpus,
            remarks=tuple(self._remarks),
        )
        for text in self._remarks:
            words = re.sub(r"\d+", "", text)  # the same remark, whatever its figures
            if words not in self._logged:
                self._logged.add(words)
                _log.info("%s", text)
        return sample

    def _remark(self, text: str) -> None:
        self._remarks.append(text)

    def _memory(self) -> tuple[int, int, str]:
        """Limit, use and their source: the level with the least left, among the cgroups and the machine."""
        total, available = machine_memory()
        group = cgroups.find("memory")
        levels = [level for level in cgroups.memory_levels(group) if level.limit < total] if group else []
        machine = cgroups.Level(total, total - available)
        if group is None or not levels:
            return machine.limit, machine.used, "MemAvailable"
        level = min(levels, key=lambda level: level.limit - level.used)
        # Others on the machine may leave less than the limit promises. The margin keeps near figures from alternating.
        if available < level.limit - level.used - level.limit // 50:
            self._remark("the machine has less memory available than the container's limit leaves")
            return machine.limit, machine.used, "MemAvailable"
        return level.limit, level.used, f"cgroup v{group.version}"

    def _memory_some(self) -> float | None:
        group = cgroups.find("memory")
        if group is not None and group.version == 2:
            own = cgroups.pressure(group.folder / "memory.pressure")
            if own is not None:
                return own
        return cgroups.pressure(Path("/proc/pressure/memory"))

    def _cpu_now(self) -> tuple[float, float]:
        """Seconds of CPU time used, and seconds that there were, both since some fixed moment."""
        if self._quota is not None:
            used = _cgroup_cpu_s()
            if used is not None:
                return used, time.monotonic() * self._quota
        busy, total = machine_cpu()
        return busy, total

    def _cpu(self) -> float:
        used, passed = self._cpu_now()
        used_before, passed_before = self._cpu_before
        if passed - passed_before >= 0.05:  # closer together, the kernel's ticks are all noise
            self._cpu_percent = min(100.0, max(0.0, 100 * (used - used_before) / (passed - passed_before)))
            self._cpu_before = used, passed
        return self._cpu_percent


def oom_kill_count(pid: int | None = None) -> int | None:
    """OOM kills counted for the memory cgroup of a process (None: this one), else for the whole machine.

    Only a difference of two of these is evidence. None: nothing counts here, or the process has ended.
    """
    if pid is not None and ((proc := read_proc(pid)) is None or proc.dead):
        return None  # a zombie stands in the root cgroup, whose count is another one
    group = cgroups.find("memory", pid)
    count = cgroups.oom_kills(group) if group is not None else None
    if count is None:
        count = cgroups.table(Path("/proc/vmstat")).get("oom_kill")
    return count


def machine_memory() -> tuple[int, int]:
    """MemTotal and MemAvailable, in bytes."""
    found = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[name] = int(value.split()[0]) * 1024
    return found["MemTotal"], found["MemAvailable"]


def machine_cpu() -> tuple[float, float]:
    """Busy and total CPU seconds of all cores since boot. Waiting for a disk is not busy."""
    with Path("/proc/stat").open() as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / hertz, sum(ticks) / hertz


def _cpus() -> tuple[int, float | None]:
    """Cores this container may use, and its quota of CPU time in cores where it has one."""
    cores = len(os.sched_getaffinity(0))
    group = cgroups.find("cpu")
    quota = cgroups.cpu_quota(group) if group is not None else None
    if quota is None or quota >= cores:
        return cores, None
    return max(1, math.ceil(quota)), quota


def _cgroup_cpu_s() -> float | None:
    group = cgroups.find("cpuacct") or cgroups.find("cpu")
    if group is None:
        return None
    if group.version == 1:
        nanoseconds = cgroups.number(group.folder / "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9
    microseconds = cgroups.table(group.folder / "cpu.stat").get("usage_usec")
    return None if microseconds is None else microseconds / 1e6
