"""Follows a job's progress file: newest progress, result, rate, ETA, and for how long nothing has advanced."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Final

from pipeline.agent.attempts.plain_files import open_plain
from pipeline.progress import parse_line
from pipeline.protocol import Eta, Progress, Result

BLOCK: Final = 1 << 20
LINE_LIMIT: Final = 1 << 18
"""A longer line is not ours: it is skipped."""

WINDOW_S: Final = 120.0
"""The rate is that of the newest so many seconds, by the monotonic clock where the job gives it, else by its own."""

SLICES: Final = 8
QUIET_AFTER_S: Final = 10.0
"""A job that wrote nothing for longer has its silence counted into the rate."""


class ProgressTail:
    """Reads what was appended since the last ``poll``; cheap when there is nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._offset = 0
        self._partial = b""
        self._skipping = False
        self._points: deque[tuple[float, float]] = deque()
        self._line_at = self._advance_at = time.monotonic()
        self._looked = False
        self.advanced = False
        """Whether the job got further while this reader was there: what it found at its first look may be old."""
        self.progress: Progress | None = None
        self.result: Result | None = None

    def poll(self) -> bool:
        """Read new lines; True if progress or result changed. A file that is absent or cannot be read says nothing."""
        try:
            status = self._path.stat()
            if (status.st_ino, status.st_size) == (self._inode, self._offset):
                return False
            with open_plain(self._path) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode = status.st_ino
                    self._restart()
                if status.st_size - self._offset > 4 * BLOCK:  # far behind: only the newest lines matter
                    self._offset, self._partial, self._skipping = status.st_size - BLOCK, b"", True
                file.seek(self._offset)
                data = file.read(4 * BLOCK)
        except OSError:
            self._looked = True
            return False
        self._offset += len(data)
        changed = self._take(data)
        self._looked = True
        return changed

    @property
    def rate(self) -> float | None:
        """Units a second over the window; None until two lines of one phase are there."""
        if len(self._points) < 2:
            return None
        (first_at, first), (last_at, last) = self._points[0], self._points[-1]
        silence = time.monotonic() - self._line_at
        seconds = last_at - first_at + (silence if silence > QUIET_AFTER_S and self.result is None else 0.0)
        rate = (last - first) / seconds if seconds > 0 else math.nan
        return rate if math.isfinite(rate) else None

    @property
    def eta(self) -> Eta | None:
        """The job's own estimate where it gives one, else what is left at the window's rate; 5 to 95 % interval."""
        progress = self.progress
        if progress is None or self.result is not None:
            return None
        if progress.eta is not None:
            return progress.eta
        if progress.total is None:
            return None
        left = max(0.0, progress.total - progress.done)
        if not left:
            return Eta(0.0, 0.0, 0.0, "all done")
        rate = self.rate
        if not rate or rate <= 0:
            return None
        spread = max(0.1, self._spread())
        low, high = left / (rate * (1 + spread)), left / (rate * max(0.25, 1 - spread))
        window = self._points[-1][0] - self._points[0][0]
        return Eta(left / rate, low, high, f"rate of the last {window:.0f} s") if math.isfinite(high) else None

    @property
    def quiet_s(self) -> float:
        """Seconds since the job last got further (or since this reader was made), on the monotonic clock."""
        return time.monotonic() - self._advance_at

    def _spread(self) -> float:
        """How far the rate may be off, as a share of it: from the rates of slices of the window."""
        points = list(self._points)
        if len(points) <= 3:
            return 0.75
        step = max(1, (len(points) - 1) // SLICES)
        chosen = points[::step]
        rates = [
            (later - earlier) / (later_at - earlier_at)
            for (earlier_at, earlier), (later_at, later) in itertools.pairwise(chosen)
            if later_at > earlier_at
        ]
        mean = statistics.fmean(rates) if rates else 0.0
        if len(rates) < 3 or mean <= 0:
            return 0.75
        return 1.645 * statistics.stdev(rates) / math.sqrt(len(rates)) / mean

    def _restart(self) -> None:
        self._offset, self._partial, self._skipping = 0, b"", False
        self._points.clear()

    def _take(self, data: bytes) -> bool:
        lines = data.split(b"\n")
        changed = False
        for number, line in enumerate(lines):
            whole = number < len(lines) - 1
            if not self._skipping:
                self._partial += line
                if len(self._partial) > LINE_LIMIT:
                    self._partial, self._skipping = b"", True
            if whole:
                if not self._skipping:
                    changed |= self._line(self._partial)
                self._partial, self._skipping = b"", False
        return changed

    def _line(self, line: bytes) -> bool:
        parsed = parse_line(line)
        if parsed is None or (parsed.progress is None and parsed.result is None):
            return False
        now = time.monotonic()
        self._line_at = now
        if parsed.result is not None:
            self.result = parsed.result
            self._get_further(now)
        if parsed.progress is not None:
            if _advanced(self.progress, parsed.progress):
                self._get_further(now)
            self._point(parsed.progress)
            self.progress, self.result = parsed.progress, parsed.result
        return True

    def _get_further(self, now: float) -> None:
        self._advance_at = now
        self.advanced |= self._looked

    def _point(self, new: Progress) -> None:
        old, points = self.progress, self._points
        if old is not None and (old.phase != new.phase or old.unit != new.unit or new.done < old.done):
            points.clear()
        at = new.at if new.monotonic is None else new.monotonic
        if points and at <= points[-1][0]:  # the clock was set back, or began anew with the machine
            if at < points[-1][0]:
                points.clear()
            else:
                points.pop()
        points.append((at, new.done))
        while len(points) > 2 and at - points[0][0] > WINDOW_S:
            points.popleft()


def _advanced(old: Progress | None, new: Progress) -> bool:
    if old is None or old.phase != new.phase or old.done != new.done:
        return True
    read = {name: count.read for name, count in old.datasets.items()}
    return any(count.read != read.get(name, 0) for name, count in new.datasets.items())
