"""Who a process is: pid and kernel start time, in a container that is itself identified. Standard library only.

A pid alone names nobody: in a container pids are low and recycle at once. Signals go through a pidfd that was checked
against the start time, so a stranger who inherited the number is never hit. A zombie counts as dead.
"""

from __future__ import annotations

import errno
import os
import signal

PF_EXITING = 4  # include/linux/sched.h
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # why a question got no answer: it says nothing of a process


class Process:
    """A process by pid and start time (clock ticks since boot, field 22 of ``/proc/PID/stat``)."""

    __slots__ = ("pid", "start")

    def __init__(self, pid: int, start: int) -> None:
        self.pid = pid
        self.start = start

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Process) and (self.pid, self.start) == (other.pid, other.start)

    def __hash__(self) -> int:
        return hash((self.pid, self.start))

    def __repr__(self) -> str:
        return f"Process({self.pid}, {self.start})"


def read_stat(pid: int) -> tuple[str, int, int, int] | None:
    """State letter, parent, session and start time of ``pid``; None when no such process is seen."""
    try:
        return _stat(pid)
    except OSError:
        return None


def _stat(pid: int) -> tuple[str, int, int, int] | None:
    """The same; OSError when it cannot be asked, as too many files are open or there is no memory."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError as error:
        if error.errno in SHORT:
            raise
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    # The first thread of a process may have ended (Z) while its others run on.
    state = "S" if fields[0] == b"Z" and int(fields[17]) > 1 else fields[0].decode()
    return state, int(fields[1]), int(fields[3]), int(fields[19])


def identify(pid: int) -> Process | None:
    """The process that has ``pid`` now, dead or alive; None when there is none."""
    stat = read_stat(pid)
    return None if stat is None else Process(pid, stat[3])


def alive(process: Process) -> bool:
    """True while exactly this process runs. OSError when it cannot be asked."""
    stat = _stat(process.pid)
    return stat is not None and stat[3] == process.start and stat[0] not in "ZX"


def exiting(process: Process) -> bool:
    """Whether it is gone or has begun to end: with much memory that takes the kernel seconds."""
    try:
        with open(f"/proc/{process.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return True
    return fields[0] in b"ZX" or int(fields[19]) != process.start or bool(int(fields[6]) & PF_EXITING)


def open_pidfd(process: Process) -> int | None:
    """A pidfd of exactly this process; None when it is gone, dead or the number belongs to another.

    OSError when it cannot be asked: a process that lives must not pass for a dead one then.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in SHORT:
            raise
        return None
    # The check comes after the open: what the handle names can no longer change.
    try:
        if alive(process):
            return handle
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def send(process: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone or is not ours to signal."""
    try:
        handle = open_pidfd(process)
    except OSError:
        return False
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def descendants(root: int) -> list[Process]:
    """All living processes below ``root``, by one pass over /proc."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = read_stat(int(name))
            if stat is not None and stat[0] not in "ZX":
                children.setdefault(stat[1], []).append(Process(int(name), stat[3]))
    found: list[Process] = []
    pending = [root]
    while pending:
        below = children.pop(pending.pop(), [])
        found += below
        pending += [process.pid for process in below]
    return found


def boot_id() -> str:
    """The kernel's id of this boot; "" where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def container_id() -> str:
    """Boot id, inode of the pid namespace and start of its pid 1: changes when the container restarts."""
    first = read_stat(1)
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{boot_id()}:{namespace}:{first[3] if first else 0}"
