"""Bytes to rows: JSON as people write it, with NaN, and arrays that are larger than memory."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NoReturn

import msgspec

from pipeline.prep.shapes import RowError

LINE_LIMIT: Final = 64 << 20  # bytes; a longer line is no row
_BLOCK: Final = 1 << 20  # bytes read at once
_SPACE: Final = " \t\r\n"


class BrokenArrayError(Exception):
    """A JSON array that ends or breaks before its closing bracket."""


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


def array_items(stream: IO[bytes]) -> Iterator[Any]:
    """The items of a JSON array, one in memory at a time. Raises BrokenArrayError where it cannot go on."""
    decoder = json.JSONDecoder()
    text = codecs.getincrementaldecoder("utf-8-sig")("replace")
    buffer, at, ended, closed = "", 0, False, False
    wanted = "["
    items = 0
    block = _BLOCK
    while True:
        while at < len(buffer) and buffer[at] in _SPACE:
            at += 1
        if at < len(buffer):
            if wanted:  # an opening bracket, or what stands between two items
                if wanted == "," and buffer[at] == "]":
                    at, closed, wanted = at + 1, True, ""
                    continue
                if buffer[at] != wanted:
                    raise BrokenArrayError(f"undecodable: JSON array broken after item {items:,}")
                at, wanted = at + 1, ""
                continue
            if closed:
                raise BrokenArrayError("undecodable: text after the JSON array")
            if buffer[at] == "]" and not items:
                at, closed = at + 1, True
                continue
            try:
                item, end = decoder.raw_decode(buffer, at)
            except RecursionError:
                raise BrokenArrayError(f"undecodable: JSON array broken after item {items:,}") from None
            except ValueError:
                end = -1
            # A number at the buffer's end may go on in the next block.
            if end >= 0 and (end < len(buffer) or ended):
                yield item
                items, at, wanted, block = items + 1, end, ",", _BLOCK
                continue
        if ended and closed:
            return
        if ended or len(buffer) - at > LINE_LIMIT:
            raise BrokenArrayError(f"undecodable: JSON array cut off after item {items:,}")
        data = stream.read(block)
        ended = not data
        buffer, at = buffer[at:] + text.decode(data, final=ended), 0
        block = min(2 * block, LINE_LIMIT)  # an item that does not fit is tried again only when twice as much is there
