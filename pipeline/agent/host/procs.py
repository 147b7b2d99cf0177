"""Every process of the container, seen in one pass over /proc.

A process is its pid together with its kernel start time: the pid alone is given to somebody else as soon as it is free.
A zombie is dead, whatever its parent makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_STATUS_FROM: Final = 32 << 20
"""Shared memory is asked for only where file and shared pages together are so many bytes: it costs another read."""


class Proc(NamedTuple):
    """One process. (A named tuple: a thousand of them are made every second.)

    ``cpu_s`` counts children that were waited for as well: the sum over a tree does not fall when one of them ends.
    """

    pid: int
    start: int  # clock ticks after boot: with the pid, the identity
    ppid: int
    state: str  # R, S, D, Z, …
    cpu_s: float

    @property
    def dead(self) -> bool:
        """Ended, and only not yet waited for."""
        return self.state in "ZX"


class Memory(NamedTuple):
    """What a process holds, in bytes.

    ``shm`` is shared memory (tmpfs, System V, multiprocessing), which every process that maps it counts in full.
    """

    anon: int
    shm: int


@dataclass(frozen=True)
class TreeUse:
    """What the processes of a tree use together."""

    cpu_s: float
    processes: int


class Table:
    """The processes of one moment."""

    def __init__(self, procs: Iterable[Proc]) -> None:
        self.procs = {proc.pid: proc for proc in procs}
        self._children: dict[int, list[Proc]] = {}
        for proc in self.procs.values():
            self._children.setdefault(proc.ppid, []).append(proc)

    def alive(self, pid: int, start: int) -> bool:
        """Whether exactly this process still runs: not gone, not another one under its pid, not a zombie."""
        proc = self.procs.get(pid)
        return proc is not None and proc.start == start and not proc.dead

    def tree(self, pid: int, start: int) -> tuple[Proc, ...]:
        """The process and all its living descendants, parents first; empty if it is gone, recycled or dead."""
        if not self.alive(pid, start):
            return ()
        found = [self.procs[pid]]
        seen = {pid}
        for proc in found:
            for child in self._children.get(proc.pid, ()):
                if child.pid not in seen and not child.dead:
                    seen.add(child.pid)
                    found.append(child)
        return tuple(found)

    def those(self, pids: Iterable[int]) -> tuple[Proc, ...]:
        """The living processes among these pids."""
        return tuple(proc for pid in pids if (proc := self.procs.get(pid)) is not None and not proc.dead)


def tree_use(procs: Iterable[Proc]) -> TreeUse:
    """Sum up a tree."""
    procs = tuple(procs)
    return TreeUse(sum(proc.cpu_s for proc in procs), len(procs))


def tree_memory(procs: Iterable[Proc]) -> int:
    """Bytes a tree holds: Σ RssAnon, and shared memory once. Reads a file of each process.

    Of shared memory the largest share of one process counts: workers map what their parent made.
    """
    held = [memory(proc.pid) for proc in procs]
    return sum(one.anon for one in held) + max((one.shm for one in held), default=0)


def snapshot() -> Table:
    """Read every process once. One that ends meanwhile is left out."""
    names = os.listdir(PROC)  # noqa: PTH208 - half the time of iterdir, and this runs every second
    found = (read_proc(int(name)) for name in names if name.isdigit())
    return Table(proc for proc in found if proc is not None)


def read_proc(pid: int) -> Proc | None:
    """One process, or None if there is none or it cannot be read."""
    stat = _read(f"/proc/{pid}/stat")
    return parse_stat(stat) if stat else None


def memory(pid: int) -> Memory:
    """What a process holds; nothing of one that has ended."""
    pages = _read(f"/proc/{pid}/statm").split(None, 3)
    if len(pages) < 3:
        return Memory(0, 0)
    rss, shared = int(pages[1]) * PAGE, int(pages[2]) * PAGE
    shm = parse_shm(_read(f"/proc/{pid}/status")) if shared >= _STATUS_FROM else 0
    return Memory(max(0, rss - shared), shm)


def parse_stat(line: bytes) -> Proc | None:
    """Read /proc/PID/stat. None for a line that is not one.

    The name stands in parentheses and may hold spaces, parentheses and newlines: fields count from the last ``)``.
    """
    try:
        pid = int(line[: line.index(b"(")])
        fields = line[line.rindex(b")") + 1 :].split(None, 20)
        state = fields[0].decode("ascii")
        # A process whose main thread has ended, while others run on, says Z too.
        if state == "Z" and int(fields[17]) > 1:
            state = "S"
        ticks = int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        return Proc(pid, int(fields[19]), int(fields[1]), state, ticks / TICKS)
    except (ValueError, IndexError):
        return None


def parse_shm(status: bytes) -> int:
    """Bytes of shared memory in /proc/PID/status; 0 where the kernel does not tell."""
    at = status.find(b"RssShmem:")
    if at < 0:
        return 0
    fields = status[at + 9 : at + 60].split(maxsplit=1)
    return int(fields[0]) * 1024 if fields and fields[0].isdigit() else 0


def _read(path: str) -> bytes:
    # os.open rather than Path: one pass makes a thousand of these calls.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, 8192)
    except OSError:
        return b""
    finally:
        os.close(handle)
