"""One agent and one keeper for each work directory: flock decides, the file names the holder. Standard library only."""

from __future__ import annotations

import fcntl
import os

from pipeline.agent.attempts.identity import Process, alive, container_id, identify

LINE = 128  # bytes; a line of one length is overwritten in place, which a full disk does not refuse


def guard(folder: str) -> int | None:
    """Lock the folder that holds the journal for the life of this process; None when somebody else has.

    This is what lets only one agent be: the lock files lie where cleaners of /tmp remove them, this folder does not
    (and systemd's cleaner leaves a locked folder alone).
    """
    os.makedirs(folder, exist_ok=True)
    return _locked(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def share(folder: str) -> bool:
    """Lock a work directory that other machines have too, for the life of this process; False when one of them has.

    A file system that knows no locks is believed to be used by one machine.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        return take(os.path.join(folder, "agent.lock")) is not None
    except OSError:
        return True


def take(path: str) -> int | None:
    """Take the lock for the life of this process and write who holds it; None when somebody else has it."""
    handle = _locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if handle is None:
        return None
    me = identify(os.getpid())
    assert me is not None
    os.pwrite(handle, f"{me.pid} {me.start} {container_id()}".ljust(LINE - 1).encode() + b"\n", 0)
    os.ftruncate(handle, LINE)
    return handle


def holds(handle: int, path: str) -> bool:
    """Whether the lock that ``take`` gave is still the one at ``path``: the file may have been removed meanwhile."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    own = os.fstat(handle)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)


def holder(path: str) -> Process | None:
    """The living process that holds the lock; None when nobody does."""
    try:
        with open(path, "rb") as file:
            pid, start, container = file.read(4096).decode(errors="replace").split()
            process = Process(int(pid), int(start))
    except (OSError, ValueError):  # not there, or not written whole
        return None
    return process if container == container_id() and alive(process) else None


def _locked(handle: int) -> int | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
