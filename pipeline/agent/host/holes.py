"""Space within files: what a front takes is given back, what an end will need is taken early. No offset ever moves."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

PUNCH_HOLE: Final = 0x02
KEEP_SIZE: Final = 0x01
BLOCK: Final = 1 << 16
"""Cuts are made at multiples of this: within a block of the file system nothing is given back, only overwritten."""

UNSUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system answers that cannot do this at all."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def give_back(path: Path, upto: int) -> None:
    """Give the space of the bytes before ``upto`` back; they read as zeros then. OSError where that cannot be done.

    A link is refused: what it leads to is somebody else's file.
    """
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        punch(handle, upto)
    finally:
        os.close(handle)


def punch(handle: int, upto: int) -> None:
    """``give_back`` in an open file."""
    _fallocate(handle, PUNCH_HOLE | KEEP_SIZE, upto)


def reserve(path: Path, size: int) -> None:
    """Take the space for ``size`` bytes now, beyond the file's end too. OSError where there is none or it cannot be."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        reserve_in(handle, size)
    finally:
        os.close(handle)


def reserve_in(handle: int, size: int) -> None:
    """``reserve`` in an open file."""
    _fallocate(handle, KEEP_SIZE, size)


def allocated(path: Path) -> int:
    """Bytes a file takes on the disk; 0 for one that is not there."""
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def data_from(handle: int, offset: int, size: int) -> int:
    """The first offset from ``offset`` on that is not in a hole; ``size`` where none is before it."""
    if offset >= size:
        return size
    try:
        return min(size, os.lseek(handle, offset, os.SEEK_DATA))
    except OSError as error:
        return size if error.errno == errno.ENXIO else offset  # else a file system that knows no holes


def _fallocate(handle: int, mode: int, length: int) -> None:
    if length > 0 and _libc.fallocate(handle, mode, 0, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
