"""Where a process stands among the cgroups (version 1 or 2), what they say of its use, and where jobs get their own."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "draftdeck-"
SWEPT_S = 60.0
"""A younger cgroup without processes may be one that a job is just about to enter."""

_UNLIMITED = 1 << 60  # version 1 writes a number near 2^63 where there is no limit


@dataclass(frozen=True)
class Cgroup:
    """A cgroup folder, and the mount point above which nothing of it can be seen."""

    version: int
    folder: Path
    top: Path

    def upwards(self) -> Iterator[Path]:
        """This folder and those above it, up to the mount point."""
        folder = self.folder
        while True:
            yield folder
            if folder == self.top or folder == folder.parent:
                return
            folder = folder.parent


@dataclass(frozen=True)
class Level:
    """Memory of one cgroup that has a limit, in bytes. ``used`` leaves out what the kernel gives back on demand."""

    limit: int
    used: int


def find(controller: str, pid: int | None = None) -> Cgroup | None:
    """The cgroup that counts ``controller`` for a process (None: this one); None where no such hierarchy is mounted."""
    membership = _text(Path(f"/proc/{pid or 'self'}/cgroup"))
    return locate(controller, membership, _mounts())


def locate(controller: str, membership: str, mounts: str) -> Cgroup | None:
    """The same, from the texts of /proc/PID/cgroup and /proc/self/mountinfo."""
    unified = None
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mount = _mount(mounts, "cgroup", controller)
            return _join(1, mount, path) if mount else None
        if number == "0" and not controllers:
            unified = path
    mount = _mount(mounts, "cgroup2", None)
    return _join(2, mount, unified) if mount and unified is not None else None


def memory_levels(group: Cgroup) -> tuple[Level, ...]:
    """Every level from the process up that has a memory limit, with its use."""
    read = _level_v1 if group.version == 1 else _level_v2
    return tuple(level for folder in group.upwards() if (level := read(folder)) is not None)


def oom_counter(group: Cgroup) -> Path:
    """The file that counts how many processes of this cgroup the kernel has killed for memory."""
    return group.folder / ("memory.oom_control" if group.version == 1 else "memory.events")


def oom_kills(group: Cgroup) -> int | None:
    """How many processes of this cgroup the kernel has killed for memory; None where it does not count."""
    return table(oom_counter(group)).get("oom_kill")


def place(attempt: Path) -> dict[str, str]:
    """For an attempt's ``spec.json``: the cgroup to make for it ("": none can be), and what counts kills without it."""
    group = find("memory")
    folder, _ = home(group)
    mark = zlib.crc32(os.fsencode(attempt.parent.parent))
    job, number = attempt.parent.name, attempt.name
    return {
        "cgroup": str(folder / f"{PREFIX}{mark:08x}-{job}-{number}") if folder else "",
        "oom_counter": str(oom_counter(group)) if group is not None and oom_kills(group) is not None else "",
    }


def counts_below(folder: str) -> bool:
    """Whether our own cgroup's counts hold those of this one: version 2 adds up what lies below, version 1 does not."""
    group = find("memory")
    return group is not None and group.version == 2 and Path(folder).is_relative_to(group.folder)


def home(group: Cgroup | None, *, look_only: bool = False) -> tuple[Path | None, str]:
    """The folder in which memory cgroups for jobs can be made, ``group`` being our own; else None, and why not.

    ``look_only``: say what would be, without giving any cgroup a controller.
    """
    if group is None:
        return None, "no memory cgroup is mounted here"
    if group.version == 1:
        return group.folder, ""
    # In version 2 a cgroup that has processes gives its children no controllers, unless it is the root of all. So jobs
    # go beside our own cgroup, but only where that was given to us: else they would escape the container's limit.
    if _gives_memory(group.folder, look_only):
        return group.folder, ""
    parent = group.folder.parent
    if group.folder != group.top and _delegated(parent) and _gives_memory(parent, look_only):
        return parent, ""
    if "memory" not in _text(group.folder / "cgroup.controllers").split():
        return None, "no memory controller is given to this cgroup"
    return None, "the cgroup of this container holds its processes itself, so that it can have none for each job"


def prepare() -> str:
    """Remove what killed shims left of their jobs' cgroups; why jobs can have none here, "" if they can."""
    folder, refused = home(find("memory"))
    if folder is None:
        return f"a memory cgroup for each job: {refused}"
    for left in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # those that have processes stay
            if time.time() - left.stat().st_mtime > SWEPT_S:
                left.rmdir()
    return ""


def cpu_quota(group: Cgroup) -> float | None:
    """Cores' worth of time the process may use, by the tightest quota above it; None without one."""
    found = []
    for folder in group.upwards():
        if group.version == 2:
            quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
        else:
            quota = _text(folder / "cpu.cfs_quota_us").strip()
            period = _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(int(quota) / int(period))
    return min(found, default=None)


def pressure(path: Path) -> float | None:
    """Per cent of the last 10 s in which something waited ("some avg10"); None where the kernel does not measure it."""
    match = re.search(r"^some avg10=([\d.]+)", _text(path), re.MULTILINE)
    return float(match[1]) if match else None


def number(path: Path) -> int | None:
    """The one number a file holds; None if it is absent or says "max"."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def table(path: Path) -> dict[str, int]:
    """A file of "name number" lines; empty if absent."""
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            found[name] = int(value)
    return found


def _level_v1(folder: Path) -> Level | None:
    limit, usage = number(folder / "memory.limit_in_bytes"), number(folder / "memory.usage_in_bytes")
    if limit is None or usage is None or limit >= _UNLIMITED:
        return None
    stat = table(folder / "memory.stat")
    reclaimable = stat.get("total_inactive_file", stat.get("inactive_file", 0)) + stat.get("slab_reclaimable", 0)
    return Level(limit, max(0, usage - reclaimable))


def _level_v2(folder: Path) -> Level | None:
    # Above memory.high the kernel slows a job down to a crawl: for admission it is a limit as much as memory.max.
    limits = [limit for name in ("memory.max", "memory.high") if (limit := number(folder / name)) is not None]
    usage = number(folder / "memory.current")
    if not limits or usage is None:
        return None
    stat = table(folder / "memory.stat")
    return Level(min(limits), max(0, usage - stat.get("inactive_file", 0) - stat.get("slab_reclaimable", 0)))


def _gives_memory(folder: Path, look_only: bool) -> bool:
    control = folder / "cgroup.subtree_control"
    if "memory" not in _text(folder / "cgroup.controllers").split():
        return False
    if "memory" in _text(control).split():
        return True
    if look_only:
        is_root = not (folder / "cgroup.type").exists()
        return os.access(control, os.W_OK) and (is_root or not _text(folder / "cgroup.procs").strip())
    try:
        control.write_text("+memory")
    except OSError:
        return False
    return True


def _delegated(folder: Path) -> bool:
    """Whether systemd gave this cgroup to us to divide (``Delegate=yes``)."""
    try:
        return os.getxattr(folder, "user.delegate") == b"1"
    except OSError:
        return False


@functools.cache
def _mounts() -> str:
    return _text(Path("/proc/self/mountinfo"))  # hundreds of lines, and a container's mounts stay as they are


@functools.lru_cache(16)
def _mount(mounts: str, kind: str, controller: str | None) -> tuple[str, Path] | None:
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, described = left.split(), right.split()
        if len(fields) < 5 or len(described) < 3 or described[0] != kind:
            continue
        if controller is None or controller in described[2].split(","):
            return _unescape(fields[3]), Path(_unescape(fields[4]))
    return None


def _join(version: int, mount: tuple[str, Path], path: str) -> Cgroup:
    root, top = mount
    inside = path.removeprefix(root.rstrip("/")) if (path + "/").startswith(root.rstrip("/") + "/") else ""
    folder = top / inside.lstrip("/")
    # In another cgroup namespace the path may lie outside of what is mounted here: then the mount is the container's.
    return Cgroup(version, folder if ".." not in folder.parts and folder.is_dir() else top, top)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
