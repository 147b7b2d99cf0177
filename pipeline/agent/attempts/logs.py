"""Logs as they lie on disk: an index of their time, pages, search, the last line. Nothing reads a whole log."""

from __future__ import annotations

import bisect
import logging
import os
import re
import struct
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from pipeline.agent.attempts.plain_files import open_plain
from pipeline.agent.host.holes import data_from

INDEX_EVERY_S: Final = 1.0
PAGE_LIMIT: Final = 767 << 10  # a MiB as it travels
BLOCK: Final = 1 << 20
LINE_KEPT: Final = 1 << 16
"""Of a longer line, search forgets the front; it still finds what the line holds."""

_RECORD: Final = struct.Struct("<dQ")
_log = logging.getLogger(__name__)


class LogIndexer:
    """Writes when a log had which size: records of (wall time, bytes), at most one a second, only while it grows."""

    def __init__(self, log_path: Path, index_path: Path) -> None:
        self._log_path, self._index_path = log_path, index_path
        self._next = 0.0
        self._failed = False
        self._size = self._last_recorded()

    def tick(self, *, last: bool = False) -> None:
        """Note the log's size if it changed and a second has passed, or it is the ``last`` time.

        A full disk costs the index, nothing else. The time is the clock's of that moment: one that is set meanwhile
        changes what later bytes are dated, not what was written before.
        """
        now = time.monotonic()
        if now < self._next and not last:
            return
        try:
            size = self._log_path.stat().st_size
            if size == self._size:
                return
            with self._index_path.open("r+b" if self._index_path.exists() else "w+b") as file:
                if size < self._size:  # the log began anew
                    file.truncate(0)
                end = file.seek(0, os.SEEK_END)
                file.seek(end - end % _RECORD.size)
                file.write(_RECORD.pack(time.time(), size))
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._failed:
                self._failed = True
                _log.warning("no times for %s: %s", self._log_path, error.strerror)
            return
        self._size, self._next, self._failed = size, now + INDEX_EVERY_S, False

    def _last_recorded(self) -> int:
        try:
            with open_plain(self._index_path) as file:
                count = file.seek(0, os.SEEK_END) // _RECORD.size
                return _record(file, count - 1)[1] if count else 0
        except OSError:
            return 0


def time_at(index_path: Path, offset: int) -> float | None:
    """When the byte at ``offset`` of the log was there at the latest; None if the index does not reach so far."""
    try:
        with open_plain(index_path) as file:
            count = file.seek(0, os.SEEK_END) // _RECORD.size
            position = bisect.bisect_right(range(count), offset, key=lambda number: _record(file, number)[1])
            return _record(file, position)[0] if position < count else None
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Page:
    """A piece of a log. ``first`` is the offset of the first byte that is kept: what was before was given back."""

    offset: int  # of the first byte of data
    size: int  # of the log
    data: bytes
    first: int = 0


def page(path: Path, offset: int, limit: int) -> Page:
    """At most ``limit`` bytes from ``offset`` on; a negative one counts from the end. None of what was given back."""
    try:
        with open_plain(path) as file:
            handle = file.fileno()
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            limit = max(0, min(limit, PAGE_LIMIT))
            while True:
                start = data_from(handle, start, size)
                data = os.pread(handle, limit, start)
                size = os.fstat(handle).st_size
                first = data_from(handle, 0, size)
                if first <= start:  # else the front was given back meanwhile
                    break
                start = first
            if 0 < first == start:  # the rest of a block that was cut through
                kept = data.lstrip(b"\0")
                first = start = start + len(data) - len(kept)
                data = kept
            return Page(start, size, data, first)
    except FileNotFoundError:
        return Page(0, 0, b"")


def search(path: Path, text: str, offset: int, limit: int, budget_bytes: int) -> tuple[tuple[int, ...], int]:
    """Offsets of the lines from ``offset`` on that hold ``text``, at most ``limit``, and where the search ended.

    It reads about ``budget_bytes``, at least 128 KiB; an end before the log's size means: ask again from there. Text in
    lower case matches capitals too. ``offset`` is taken for the begin of a line.
    """
    if not text:
        raise ValueError("an empty text is in every line: search for something")
    try:
        with open_plain(path) as file:
            size = file.seek(0, os.SEEK_END)
            at = data_from(file.fileno(), max(0, offset), size)
            stop = min(size, at + max(budget_bytes, 2 * LINE_KEPT))
            file.seek(at)
            scan = _Scan(text, at, limit)
            while at < stop and not scan.full and (block := file.read(min(BLOCK, stop - at))):
                at += len(block)
                scan.feed(block, last=at >= size)
            return tuple(scan.found), scan.upto
    except FileNotFoundError:
        return (), 0


class _Scan:
    """Looks for a text in blocks of a log, each line once."""

    def __init__(self, text: str, at: int, limit: int) -> None:
        self.found: list[int] = []
        self.upto = at
        self._needle = text.encode()
        self._fold = text == text.lower()
        self._limit = limit
        self._kept, self._kept_at = b"", at  # what the last block left to be looked at again
        self._line_at = at  # where the line begins that _kept is part of

    @property
    def full(self) -> bool:
        return len(self.found) >= self._limit

    def feed(self, block: bytes, *, last: bool) -> None:
        """Look at the lines that are whole now; at the rest too if it is the log's end or too long to be kept."""
        data, base = self._kept + block, self._kept_at
        cut = data.rfind(b"\n") + 1
        if last or len(data) - cut > LINE_KEPT:
            cut = len(data)
        self.upto = base + self._look(data[:cut], base)
        newline = data.rfind(b"\n", 0, cut) + 1
        if newline:
            self._line_at = base + newline
        # Inside a line, as much is looked at again as a match across the border needs.
        keep = max(newline, cut - len(self._needle) + 1) if newline < cut else cut
        self._kept, self._kept_at = data[keep:], base + keep

    def _look(self, data: bytes, base: int) -> int:
        """Note the lines of ``data`` that match; how far it looked."""
        hay = data.lower() if self._fold else data
        position = hay.find(self._needle)
        while position >= 0:
            newline = hay.rfind(b"\n", 0, position) + 1
            begins = base + newline if newline else self._line_at
            if not self.found or self.found[-1] != begins:
                self.found.append(begins)
            ends = hay.find(b"\n", position)
            if ends < 0:
                break
            if self.full:
                return ends + 1
            position = hay.find(self._needle, ends)
        return len(data)


def tail(path: Path, limit: int) -> bytes:
    """The last ``limit`` bytes; nothing for a log that is not there."""
    return page(path, -limit, limit).data if limit > 0 else b""


def last_line(path: Path, limit: int = 200) -> str:
    """The last line that says anything, as plain text. A progress bar's lone carriage returns end lines too."""
    try:
        data = tail(path, 16384)
    except OSError:
        return ""
    for line in reversed(re.split(rb"[\r\n]+", data)):
        text = plain(line.decode(errors="replace")).strip()
        if text:
            return text[:limit]
    return ""


_SEQUENCES: Final = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    "|\x1b[ -/]*[0-~]?"  # all others
)
_JOINERS: Final = "\u200c\u200d"  # part of words and of emoji


def plain(text: str, keep: str = "\n") -> str:
    """``text`` without control sequences, control characters and invisible direction marks; those in ``keep`` stay.

    A sequence that is never ended goes to the end of its line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in keep else _shown(char) for char in _SEQUENCES.sub("", text))


def _shown(char: str) -> str:
    if char in _JOINERS:
        return char
    kind = unicodedata.category(char)
    if char == "\t" or kind in ("Zl", "Zp"):
        return " "
    if kind == "Cs":
        return "\ufffd"
    return "" if kind in ("Cc", "Cf") else char


def _record(file: BinaryIO, number: int) -> tuple[float, int]:
    file.seek(number * _RECORD.size)
    at, size = _RECORD.unpack(file.read(_RECORD.size))
    return at, size
