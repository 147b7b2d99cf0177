"""Files in an attempt's folder as the agent opens them: a job may have put something else under their names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

NO_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""What opening a link to itself, a socket or a device that is not there meets."""

SPEC_LIMIT: Final = 16 << 20  # bytes of a spec.json


def read_plain(path: Path, limit: int = 1 << 20) -> bytes:
    """What a file holds, of one that is longer its first ``limit`` bytes; raises as ``open_plain`` does."""
    with open_plain(path) as file:
        return file.read(limit)


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading without ever waiting for it; FileNotFoundError for what is no regular file.

    A plain ``open`` of a named pipe waits until somebody writes to it, and with it the thread that looks at all jobs.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NO_FILE:
            raise FileNotFoundError(errno.ENOENT, f"not a regular file: {error.strerror}", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    return os.fdopen(handle, "rb")
