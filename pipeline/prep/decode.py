"""Bytes to rows of JSON as people write it: lines, and arrays that are larger than memory.

Rows are cut out first and decoded by whoever wants them: most rows of a large set are never wanted, and a row that is
broken does not take the next ones with it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final, NoReturn

import msgspec

from pipeline.prep.shapes import RowError

LINE_LIMIT: Final = 64 << 20  # bytes; a longer line or item is no row
SHOWN: Final = 1024  # bytes kept of one that is too long
BLOCK: Final = 1 << 20  # bytes read at once

Undecoded = tuple[Callable[[], Any], bytes]
"""What decodes a row, and bytes to show of it. Decoding raises RowError."""

_MARK: Final = re.compile(rb'["\[\]{},]')
_TEXT: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)  # up to the closing quote
_SPACE: Final = b" \t\r\n"
_QUOTE, _COMMA, _OPEN = b'",['


def decode_line(line: bytes) -> Any:
    """One JSON value. Raises RowError."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # The standard library's is slower, and takes NaN and lone surrogates.
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise RowError("undecodable: not UTF-8") from None
    except RecursionError:
        raise RowError("undecodable: JSON nested too deep") from None
    except ValueError:
        raise RowError("undecodable: not JSON") from None


def refuse(reason: str) -> Callable[[], NoReturn]:
    """The decoder of a row that is known to be undecodable."""

    def load() -> NoReturn:
        raise RowError(reason)

    return load


@dataclass(frozen=True)
class Lost:
    """The decoder of what is left of a file that cannot be read on: one row, however many there were."""

    reason: str

    def __call__(self) -> NoReturn:
        raise RowError(self.reason)


def lines(stream: IO[bytes]) -> Iterator[Undecoded]:
    """The lines that hold something."""
    while line := stream.readline(LINE_LIMIT):
        if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
            while (rest := stream.readline(LINE_LIMIT)) and not rest.endswith(b"\n"):
                pass
            yield refuse(f"undecodable: a line over {LINE_LIMIT >> 20} MiB"), line[:SHOWN]
        elif not line.isspace():
            yield functools.partial(decode_line, line), line


def array_items(stream: IO[bytes]) -> Iterator[Undecoded]:
    """The items of a JSON array, or of several one after the other; one item in memory at a time.

    Items are cut at the commas of the outermost level, so one that is no JSON costs itself alone. Where the array is
    cut off, or something else follows it, there is one more row that cannot be decoded and says so. Raises what
    reading the stream raises, after the items before it.
    """
    buffer = stream.read(3).removeprefix(b"\xef\xbb\xbf")
    start = at = depth = count = 0  # the item's start, how far it was looked at, open brackets, items so far
    in_text = False
    head = b""  # of an item that is too long, the rest of which is let go
    block = BLOCK
    error: Exception | None = None
    while error is None:
        data, error = _gather(stream, block)
        if not data:
            break
        buffer, at, start = buffer[start:] + data, at - start, 0
        block = min(2 * block, LINE_LIMIT)
        while True:
            if in_text:
                end = _TEXT.match(buffer, at)
                at = end.end() if end else at
                if at == len(buffer) or buffer[at] != _QUOTE:
                    break  # it goes on in the next block, perhaps with what a backslash escapes
                in_text, at = False, at + 1
            mark = _MARK.search(buffer, at)
            if mark is None:
                at = len(buffer)
                break
            byte, end_of_item, at = buffer[mark.start()], mark.start(), mark.end()
            if depth == 0:
                if byte != _OPEN or buffer[start:end_of_item].strip(_SPACE):
                    yield Lost("undecodable: text after the JSON array"), buffer[start : start + SHOWN]
                    return
                depth, start = 1, at
            elif byte == _QUOTE:
                in_text = True
            elif byte in b"[{":
                depth += 1
            elif byte in b"]}":
                depth -= 1
            if (byte == _COMMA and depth == 1) or (depth == 0 and byte in b"]}"):
                item = buffer[start:end_of_item].strip(_SPACE)
                if head or len(item) > LINE_LIMIT:
                    head = head or item[:SHOWN]
                    yield refuse(f"undecodable: an item over {LINE_LIMIT >> 20} MiB"), head
                elif item or byte == _COMMA:
                    yield functools.partial(decode_line, item), item
                count += bool(head or item or byte == _COMMA)
                start, head, block = at, b"", BLOCK
        if at - start > LINE_LIMIT:
            head = head or buffer[start : start + SHOWN]
            start = at
    if error is not None:
        raise error
    rest = head or buffer[start : start + SHOWN].strip(_SPACE)
    if depth:
        yield Lost(f"undecodable: JSON array cut off after item {count:,}"), rest
    elif rest:
        yield Lost("undecodable: text after the JSON array"), rest


def _gather(stream: IO[bytes], size: int) -> tuple[bytes, Exception | None]:
    """About so many bytes, and the error that ended them: what was read before it is not lost."""
    parts: list[bytes] = []
    try:
        # In small pieces: one that is damaged is lost as a whole.
        while size > 0 and (data := stream.read1(min(size, 1 << 16))):  # type: ignore[attr-defined]
            parts.append(data)
            size -= len(data)
    except Exception as error:
        return b"".join(parts), error
    return b"".join(parts), None
