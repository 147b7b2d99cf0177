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
    if _is(path, mine):
        if mine.st_size <= LIMIT:
            return
        # The new one first: where none can be made, everything stays as it is until the next look.
        new = path + ".new"
    elif not mine.st_nlink or (not os.path.lexists(path) and _is(path + ".1", mine)):
        new = path
    else:
        return
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if new != path:
            os.replace(path, path + ".1")
            os.replace(new, path)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
    finally:
        os.close(handle)


def _is(path: str, mine: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), mine)
    except FileNotFoundError:
        return False
