"""The files of an attempt, as its shim writes them: durable, and whole or absent. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Mapping

STARTED = "started"  # what a shim says of a job that was started
EXIT_SPACE = 16384  # bytes kept for the exit record, so that a full disk cannot lose it
FULL_S = 0.5
GONE_S = 10.0
OURS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # never a link, and never waiting


def claim(folder: str, owner: Mapping[str, object]) -> bool:
    """Create the attempt's claim; False when somebody else has. ``sync``, or the next file, makes its name durable."""
    path = os.path.join(folder, "claim")
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        _write(handle, json.dumps({**owner, "at": time.time()}).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def reserve(folder: str) -> None:
    """Take the disk space of the exit record now."""
    handle = os.open(os.path.join(folder, ".exit.json"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(handle, 0, EXIT_SPACE)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    finally:
        os.close(handle)


def keep_exit(folder: str, record: Mapping[str, object]) -> None:
    """Write the exit record, however long a disk that is full, or does not answer, makes it take.

    A folder that is not there any more for ``GONE_S`` was removed: then there is nobody to keep the record for.
    """
    gone = time.monotonic() + GONE_S
    while True:
        try:
            return write_exit(folder, record)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                gone = time.monotonic() + GONE_S
            elif time.monotonic() > gone:
                raise
        time.sleep(FULL_S)


def write_exit(folder: str, record: Mapping[str, object]) -> None:
    """Write the exit record into the space that was kept for it."""
    replace(folder, "exit.json", json.dumps(record, ensure_ascii=False).encode())


def put_aside(path: str) -> None:
    """Give another name to what a job has put in the place of a file: a pipe, a link, a folder, a device."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.rename(path, f"{path}.{time.time_ns()}")
    except FileNotFoundError:
        pass


def replace(folder: str, name: str, data: bytes) -> None:
    """Write a file durably, whole or not at all; into space that was kept for it, where there is some."""
    temporary, path = os.path.join(folder, f".{name}"), os.path.join(folder, name)
    put_aside(temporary)
    put_aside(path)
    handle = os.open(temporary, OURS, 0o644)
    try:
        _write(handle, data)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(temporary, path)
    sync(folder)


def read_grace(folder: str, otherwise: float) -> float:
    """The seconds that ``grace`` holds, a file that is there only if a plan has changed them while the job ran."""
    try:
        return float(read(os.path.join(folder, "grace")))
    except ValueError:
        return otherwise


def _write(handle: int, data: bytes) -> None:
    """Write all of ``data``: on a disk that is nearly full a write may do a part, and only the next one says why."""
    while data:
        data = data[os.write(handle, data) :]


def oom_kills(counter: str) -> int | None:
    """The figure of a cgroup's memory.events or memory.oom_control; None where it cannot be read."""
    return figure(read(counter), b"oom_kill")


def figure(table: bytes, name: bytes) -> int | None:
    """The number behind a name, in a file of the kernel that has one name and number a line."""
    at = table.find(name + b" ")
    while at > 0 and table[at - 1 : at] != b"\n":
        at = table.find(name + b" ", at + 1)
    number = table[at + len(name) + 1 : at + len(name) + 24].split(None, 1) if at >= 0 else []
    return int(number[0]) if number and number[0].isdigit() else None


def read(path: str) -> bytes:
    """A small file, most often the kernel's; nothing where it cannot be read. A pipe in its place is not waited for.

    Plain calls: the agent asks much of every job.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(handle)


def sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems do not know it
    finally:
        os.close(handle)
