"""One agent and one keeper for each work directory: flock decides, the file names the holder. Standard library only."""

from __future__ import annotations

import fcntl
import os

from pipeline.agent.identity import Process, alive, container_id, identify


def take(path: str) -> int | None:
    """Take the lock for the life of this process and write who holds it; None when somebody else has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    me = identify(os.getpid())
    assert me is not None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{me.pid} {me.start} {container_id()}\n".encode(), 0)
    return handle


def holder(path: str) -> Process | None:
    """The living process that holds the lock; None when nobody does."""
    try:
        with open(path) as file:
            fields = file.read().split()
    except OSError:
        return None
    if len(fields) != 3 or fields[2] != container_id():
        return None
    process = Process(int(fields[0]), int(fields[1]))
    return process if alive(process) else None
