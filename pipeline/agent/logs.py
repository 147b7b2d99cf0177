"""Logs as they lie on disk: an index of their time, pages, search, the last line. Nothing reads a whole log."""

from __future__ import annotations

import logging
import os
import re
import struct
import time
import unicodedata
from pathlib import Path
from typing import Final

PAGE_LIMIT: Final = 1 << 20
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

    def tick(self) -> None:
        """Note the log's size if it changed and a second has passed. A full disk costs the index, nothing else."""
        now = time.monotonic()
        if now < self._next:
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
        self._size, self._next, self._failed = size, now + 1.0, False

    def _last_recorded(self) -> int:
        records = _records(self._index_path)
        return records[-1][1] if records else 0


def time_at(index_path: Path, offset: int) -> float | None:
    """When the byte at ``offset`` of the log was there at the latest; None if the index does not reach so far."""
    return next((at for at, size in _records(index_path) if size > offset), None)


def page(path: Path, offset: int, limit: int) -> tuple[int, int, bytes]:
    """At most ``limit`` bytes from ``offset`` (negative: from the end): (offset of the first byte, size of the log, bytes).

    What was cut from a log's front is a hole in its file, and is skipped: the offset that comes back says so.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            start = _data_from(file.fileno(), start, size)
            file.seek(start)
            return start, size, file.read(max(0, min(limit, PAGE_LIMIT)))
    except FileNotFoundError:
        return 0, 0, b""


def search(path: Path, text: str, offset: int, limit: int, budget_bytes: int) -> tuple[tuple[int, ...], int]:
    """Offsets of the lines from ``offset`` on that hold ``text``, at most ``limit``, and where the search ended.

    It reads about ``budget_bytes`` at most; an end before the log's size means: ask again from there. Text in lower case
    matches capitals too.
    """
    if not text:
        raise ValueError("an empty text is in every line: search for something")
    needle = text.encode()
    fold = text == text.lower()
    found: list[int] = []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            at = _data_from(file.fileno(), max(0, offset), size)
            stop = min(size, at + max(budget_bytes, 1))
            file.seek(at)
            kept, line_at = b"", at  # the front of a line not yet whole, and where that line begins
            while at < stop and (block := file.read(min(BLOCK, stop - at))):
                at += len(block)
                base, data = at - len(block) - len(kept), kept + block
                # What follows the last newline is looked at when it is whole, at the end, or when it is too long to keep.
                cut = data.rfind(b"\n") + 1
                if at >= size or len(data) - cut > LINE_KEPT:
                    cut = len(data)
                hay = data[:cut].lower() if fold else data[:cut]
                position = hay.find(needle)
                while position >= 0:
                    newline = hay.rfind(b"\n", 0, position) + 1
                    begins = base + newline if newline else line_at
                    if not found or found[-1] != begins:
                        found.append(begins)
                    ends = hay.find(b"\n", position)
                    if len(found) >= limit:
                        return tuple(found), base + (ends + 1 if ends >= 0 else cut)
                    position = hay.find(needle, ends) if ends >= 0 else -1
                newline = data.rfind(b"\n", 0, cut) + 1
                if newline:
                    line_at = base + newline
                # Of a line too long to keep, as much stays as a match across the border may need.
                kept = data[cut:] if cut < len(data) else data[max(newline, len(data) - len(needle) + 1) :]
                if cut == len(data) == newline:
                    kept = b""
    except FileNotFoundError:
        return (), 0
    return tuple(found), at if at >= size or len(kept) < 1 else at - len(kept)


def tail(path: Path, limit: int) -> bytes:
    """The last ``limit`` bytes; nothing for a log that is not there."""
    return page(path, -limit, limit)[2] if limit > 0 else b""


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


def _records(index_path: Path) -> list[tuple[float, int]]:
    try:
        data = index_path.read_bytes()
    except OSError:
        return []
    return [_RECORD.unpack_from(data, at) for at in range(0, len(data) - _RECORD.size + 1, _RECORD.size)]


def _data_from(handle: int, offset: int, size: int) -> int:
    """The first offset from ``offset`` on that is not in a hole."""
    if offset >= size:
        return size
    try:
        return os.lseek(handle, offset, os.SEEK_DATA)
    except OSError:  # a hole to the end, or a file system that knows no holes
        return offset
