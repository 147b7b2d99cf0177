"""Files in an attempt's folder as the agent opens them: a job may have put something else under their names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading without ever waiting for it; FileNotFoundError for what is no regular file.

    A plain ``open`` of a named pipe waits until somebody writes to it, and with it the thread that looks at all jobs.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    return os.fdopen(handle, "rb")
