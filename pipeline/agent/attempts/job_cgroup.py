"""The memory cgroup of one attempt: its shim makes it, its job enters it, it goes when it is empty.

Standard library only. It counts what the job holds, finds what left the job's tree and session, and tells how many of
its processes the kernel killed for memory. ``folder`` is its folder, "" where the attempt has none.
"""

from __future__ import annotations

import contextlib
import os

from pipeline.agent.attempts.attempt_files import figure, read

PEAKS = ("memory.max_usage_in_bytes", "memory.peak")
COUNTERS = ("memory.oom_control", "memory.events")
HELD = ((b"total_rss", b"total_shmem"), (b"anon", b"shmem"))
"""By cgroup version: the figures of memory.stat that nobody can take back from a job."""


def make(folder: str) -> None:
    """Make it anew. OSError where the kernel, or a read-only mount, refuses."""
    try:
        os.mkdir(folder)
    except FileExistsError:  # left from an earlier life of this work directory; its counts are another attempt's
        os.rmdir(folder)
        os.mkdir(folder)


def enter(folder: str) -> None:
    """Move this process, which must have one thread only, into it. OSError where that is refused."""
    # Version 1 moves a thread by "tasks" in 0.1 ms; "cgroup.procs" locks all processes first, and that takes 11 ms.
    tasks = os.path.join(folder, "tasks")
    handle = os.open(tasks if os.path.exists(tasks) else os.path.join(folder, "cgroup.procs"), os.O_WRONLY)
    try:
        os.write(handle, b"0")
    finally:
        os.close(handle)


def remove(folder: str) -> None:
    """Remove it; one that still has processes stays."""
    if folder:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def members(folder: str) -> tuple[int, ...]:
    """Pids of its processes, those of cgroups that the job made in it left out; none where there is no such cgroup."""
    listed = read(_first(folder, ("cgroup.procs",))).split()
    return tuple(int(pid) for pid in listed if pid.isdigit())


def counter(folder: str) -> str:
    """The file that counts which of its processes the kernel killed for memory; "" where there is none."""
    return _first(folder, COUNTERS)


def peak(folder: str) -> int | None:
    """The most bytes it was charged with at one time. The page cache of what it read and wrote counts as well."""
    text = read(_first(folder, PEAKS)).strip()
    return int(text) if text.isdigit() else None


def held(folder: str) -> int | None:
    """Bytes of anonymous and shared memory its processes hold now; None where that cannot be read."""
    table = read(f"{folder}/memory.stat") if folder else b""
    for names in HELD:
        if (anon := figure(table, names[0])) is not None:
            return anon + (figure(table, names[1]) or 0)
    return None


def _first(folder: str, names: tuple[str, ...]) -> str:
    paths = (os.path.join(folder, name) for name in names)
    return next((path for path in paths if folder and os.path.exists(path)), "")
