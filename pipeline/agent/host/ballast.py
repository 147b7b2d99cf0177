"""A file that holds disk space beside the journal, to be given up when the journal cannot be written for want of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SIZE: Final = 64 * 10**6
SHARE: Final = 100
"""On a small file system it is one of so many parts."""
ROOM: Final = 4
"""It is made where so many times its size is free."""


class Ballast:
    """The one of a journal's folder. Everything here may block."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ballast"
        self.given_up = False

    @property
    def held(self) -> int:
        """Its bytes, 0 where there is none."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def hold(self) -> int:
        """Make it where it is missing and there is ample room; the bytes that were taken."""
        if self.held:
            return 0
        disk = os.statvfs(self._path.parent)
        size = min(SIZE, disk.f_blocks * disk.f_frsize // SHARE)
        if disk.f_bavail * disk.f_frsize < ROOM * size:
            return 0
        fresh = self._path.with_name(".ballast")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, size)
            fresh.rename(self._path)
        except OSError:
            fresh.unlink()
            raise
        finally:
            os.close(handle)
        self.given_up = False
        return size

    def drop(self) -> int:
        """Give it up; the bytes that are free now."""
        size = self.held
        self._path.unlink(missing_ok=True)
        self.given_up |= size > 0
        return size
