"""Free space of file systems, asked where one that hangs holds nobody up, and how fast it goes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

WAIT_S: Final = 0.05
"""How long a look waits for an answer; a healthy file system gives it in microseconds."""

HUNG_S: Final = 5.0
"""After so long without an answer it is said that the file system does not answer."""

LATELY_S: Final = 15.0
"""What "lately" means where it is asked how little was free."""

WINDOW_S: Final = 600.0
POINT_S: Final = 10.0
LEAST_S: Final = 120.0
"""The rate is that over the window; nothing is said of one that was seen for less than this."""

LONGEST_S: Final = 365 * 86400.0


@dataclass(frozen=True)
class Space:
    """What statvfs says, in bytes; inodes are None where the file system makes them as it needs them."""

    free: int
    total: int
    inodes_free: int | None = None
    inodes_total: int | None = None


class Disk:
    """The file system of a path, asked by a thread of its own; the last answer stands until the next one comes.

    ``made_later``: where the path is not there yet, the nearest folder above it is asked.
    """

    def __init__(self, path: Path, *, made_later: bool = False) -> None:
        self.path = path
        self.space: Space | None = None
        self.rate = Rate()
        self._made_later = made_later
        self._trouble = ""
        self._thread: threading.Thread | None = None
        self._asked = 0.0  # monotonic
        self._answer: Space | OSError | None = None
        self._lately: deque[tuple[float, Space]] = deque(maxlen=100)

    def look(self) -> Space | None:
        """Ask, unless a question still waits for its answer; the newest answer there is."""
        if self._thread is None or not self._thread.is_alive():
            self._take()
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="statvfs", daemon=True)
            self._thread.start()
            self._thread.join(WAIT_S)
        if not self._thread.is_alive():
            self._take()
        return self.space

    @property
    def trouble(self) -> str:
        """Why the figures are old or missing, "" where they are neither."""
        if self._thread is None or not self._thread.is_alive():
            return self._trouble
        if not self.silent:
            return ""
        kept = "; its figures are from before" if self.space is not None else ""
        return f"the disk of {self.path} has not answered for {time.monotonic() - self._asked:.0f} s{kept}"

    @property
    def silent(self) -> bool:
        """Whether a question has waited long for its answer."""
        return self._thread is not None and self._thread.is_alive() and time.monotonic() - self._asked > HUNG_S

    def least(self) -> Space | None:
        """The answer of the last seconds with the least free space."""
        now = time.monotonic()
        found = [space for at, space in self._lately if now - at < LATELY_S]
        return min(found, key=lambda space: (space.free, space.inodes_free or 0), default=None)

    def _ask(self) -> None:
        try:
            found = os.statvfs(_existing(self.path) if self._made_later else self.path)
        except OSError as error:
            self._answer = error
            return
        counted = found.f_files > 0
        self._answer = Space(
            found.f_bavail * found.f_frsize,
            found.f_blocks * found.f_frsize,
            found.f_favail if counted else None,
            found.f_files if counted else None,
        )

    def _take(self) -> None:
        """Take in an answer that has come."""
        answer, self._answer = self._answer, None
        if isinstance(answer, OSError):
            self.space, self._trouble = None, f"the disk of {self.path} cannot be read: {answer.strerror}"
        elif answer is not None:
            self.space, self._trouble = answer, ""
            now = time.monotonic()
            self._lately.append((now, answer))
            self.rate.add(now, answer.free)


class Disks:
    """The file systems that are looked at, by a path in each. ``work`` is the work directory's."""

    def __init__(self, workdir: Path) -> None:
        self.work = Disk(workdir)
        self._others: dict[Path, Disk] = {}

    def of(self, path: Path) -> Disk:
        """The one of a path, which is looked at from now on."""
        return self.work if path == self.work.path else self._others.setdefault(path, Disk(path, made_later=True))

    def look_at_others(self) -> None:
        """Ask all but the work directory's."""
        for disk in list(self._others.values()):
            disk.look()

    def remarks(self) -> tuple[str, ...]:
        """Which of the others do not answer."""
        return tuple(disk.trouble for disk in list(self._others.values()) if disk.silent)

    def known(self) -> dict[str, Space]:
        """By path: the newest answers."""
        disks = (self.work, *dict(self._others).values())
        return {str(disk.path): disk.space for disk in disks if disk.space is not None}


class Rate:
    """How fast free space goes: the median over pairs of points a quarter of the window apart.

    Writes that come in bursts are evened out, and a single jump, such as much that was deleted, does not count.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, now: float, free: int) -> None:
        """Take in what was free at a monotonic time."""
        if self._points and now - self._points[-1][0] < POINT_S:
            return
        self._points.append((now, free))
        while now - self._points[0][0] > WINDOW_S:
            self._points.popleft()

    def left_s(self) -> float | None:
        """Seconds until nothing is free at the rate of the window; None where it does not shrink or is not known."""
        points = tuple(self._points)
        if len(points) < 2 or points[-1][0] - points[0][0] < LEAST_S:
            return None
        pairs = zip(points, points[max(1, len(points) // 4) :], strict=False)
        rate = median((free - later) / (at_later - at) for (at, free), (at_later, later) in pairs)
        left = points[-1][1] / rate if rate > 0 else LONGEST_S
        return left if left < LONGEST_S else None


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
