"""A window on a log file of any size: a bounded ring of lines that grows at its end and at its head."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from console.view import format as fmt
from console.view.text import shown_line
from pipeline.protocol import LogPage

LINES_KEPT: Final = 20_000
PENDING_KEPT: Final = 65_536


@dataclass(frozen=True)
class LogLine:
    """A line as it is drawn, and the offset of its first byte in the file."""

    offset: int
    text: str


class LogBuffer:
    """Lines of one attempt's log between two offsets. Holds at most ``limit`` lines; the rest is fetched again."""

    def __init__(self, limit: int = LINES_KEPT) -> None:
        self.lines: deque[LogLine] = deque(maxlen=limit)
        self.start = 0  # offset of the first line held
        self.end = 0  # offset after the last byte taken
        self.size = 0  # of the file, as last heard
        self.first = 0  # offset of the first byte the host has kept: what was before was given back to its disk
        self.skipped = 0  # bytes jumped over because the log grew faster than it is shown
        self._pending = b""  # bytes after the last newline
        self._pending_at = 0

    @property
    def pending(self) -> LogLine | None:
        """The line that has no newline yet."""
        return LogLine(self._pending_at, shown_line(self._pending)) if self._pending else None

    @property
    def notice(self) -> LogLine | None:
        """What is said in place of a front that is gone, where the window reaches back to it."""
        if not self.first or self.start > self.first:
            return None
        part = "all" if self.first >= self.size else "the first"
        return LogLine(self.first, f"── {part} {fmt.size(self.first)} of this log were given back to the disk ──")

    def restart(self, page: LogPage) -> None:
        """Begin anew with ``page``; its first line is dropped where it is cut and more is kept before it."""
        self.lines.clear()
        data, offset = page.data, page.offset
        if offset > page.first:
            newline = data.find(b"\n")
            if newline >= 0:
                data, offset = data[newline + 1 :], offset + newline + 1
        self.start = self.end = self._pending_at = offset
        self._pending = b""
        self.append(LogPage(page.attempt, offset, page.size, data, page.first))

    def append(self, page: LogPage) -> int:
        """Take ``page`` where it continues the window, and return how many lines it added.

        A page from elsewhere starts the window anew; the bytes between are counted as skipped.
        """
        self._heard(page)
        if page.offset != self.end:
            self.skipped += max(0, page.offset - self.end)
            self.restart(page)
            return len(self.lines)
        if not page.data:
            return 0
        self.end += len(page.data)
        *complete, rest = (self._pending + page.data).split(b"\n")
        # A pending line that was cut short keeps its place: the next one starts where the file says.
        at, first = self._pending_at, True
        cut = page.offset - self._pending_at - len(self._pending)
        for line in complete:
            self.lines.append(LogLine(at, shown_line(line)))
            at += len(line) + 1 + (cut if first else 0)
            first = False
        self._pending_at = at
        self._pending = _bounded(rest)
        if self.lines:
            self.start = self.lines[0].offset
        return len(complete)

    def prepend(self, page: LogPage) -> int:
        """Put the lines of ``page``, which ends at ``start``, before the window, and return how many there are.

        Lines at the end of a full window make room.
        """
        self._heard(page)
        data, offset = page.data[: max(0, self.start - page.offset)], page.offset
        if offset > page.first:
            newline = data.find(b"\n")
            if 0 <= newline < len(data) - 1:
                data, offset = data[newline + 1 :], offset + newline + 1
        if not data:
            return 0
        found = []
        at = offset
        for line in data.removesuffix(b"\n").split(b"\n"):
            found.append(LogLine(at, shown_line(line)))
            at += len(line) + 1
        room = self.lines.maxlen or LINES_KEPT
        while self.lines and len(self.lines) + len(found) > room:
            last = self.lines.pop()
            self.end = self._pending_at = last.offset
            self._pending = b""
        self.lines.extendleft(reversed(found))
        self.start = offset
        return len(found)

    def _heard(self, page: LogPage) -> None:
        self.size, self.first = page.size, max(self.first, page.first)

    def line_at(self, offset: int) -> int | None:
        """Index of the line that begins at or holds the byte at ``offset``; None where the window does not hold it."""
        if not self.lines or not self.start <= offset < max(self.end, self.start + 1):
            return None
        low, high = 0, len(self.lines) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.lines[middle].offset <= offset:
                low = middle
            else:
                high = middle - 1
        return low


def _bounded(pending: bytes) -> bytes:
    """A line without an end in bounded memory: what the last carriage return left, and of that only the head."""
    if len(pending) <= PENDING_KEPT:
        return pending
    return pending.rpartition(b"\r")[2][:PENDING_KEPT]
