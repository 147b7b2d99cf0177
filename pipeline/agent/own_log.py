"""The log of agent or keeper, within its cap: the process itself moves it aside and goes on in a new one.

Standard library only: the keeper runs without any other.
"""

from __future__ import annotations

import os
import stat

LIMIT = 4 << 20  # bytes; one before it is kept
LOOK_S = 2.0


def keep(path: str) -> None:
    """Have standard output and error go on in a new file at ``path`` where the one there has grown long or was removed.

    A terminal, or a file somewhere else, is left alone. OSError where no new one can be made.
    """
    mine = os.fstat(2)
    if not stat.S_ISREG(mine.st_mode):
        return
    if mine.st_nlink:
        try:
            there = os.stat(path)
        except FileNotFoundError:
            return
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino) or mine.st_size <= LIMIT:
            return
        os.replace(path, path + ".1")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
