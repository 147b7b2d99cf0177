"""Text from outside made safe to draw: no control sequences, no control or direction characters, bounded length."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LIMIT: Final = 2000
"""Characters of one line that a pane ever draws."""

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI, ended or not
    r"|\x9b[0-?]*[ -/]*[@-~]?"  # CSI, one character
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"  # every other escape
)
# Direction marks, zero-width and tag characters change how text around them is drawn, or hide it; a lone surrogate
# cannot be written to a terminal at all.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufeff\ufff0-\ufffb\ud800-\udfff\ufe00-\ufe0f\U000e0000-\U000e0fff]"
)
_BREAKS: Final = re.compile("[\t\n\u2028\u2029]+")


def clean(text: str, limit: int = LIMIT) -> str:
    """One safe line: escape sequences and unseen characters removed, breaks as spaces, cut at ``limit`` with a count.

    Only a few times ``limit`` characters are looked at, so that a megabyte costs no more than a line.
    """
    looked_at = text[: limit * 4 + 256]
    safe = _BREAKS.sub(" ", _UNSEEN.sub("", _ESCAPES.sub("", looked_at)))
    unseen = len(text) - len(looked_at)
    if len(safe) <= limit and not unseen:
        return safe
    left_out = max(0, len(safe) - limit) + unseen
    return f"{safe[:limit]} … {left_out:,} more characters"


def shown_line(data: bytes, limit: int = LIMIT) -> str:
    """A log line as a terminal would leave it: what follows the last carriage return, made safe.

    A progress bar rewrites its line with carriage returns; only the newest state of it is worth a row.
    """
    data = data.rstrip(b"\r\n")
    last = data.rpartition(b"\r")[2] or data.replace(b"\r", b" ")
    looked_at = last[: limit * 6]
    text = clean(looked_at.decode("utf-8", "replace"), limit)
    if len(looked_at) < len(last):
        head = text.partition(" … ")[0][:limit]
        return f"{head} … {len(last) - len(head.encode()):,} more bytes"
    return text


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells of a terminal, the last an ellipsis where something is cut."""
    if cells(text) <= width:
        return text
    kept, left = 0, width - 1
    while kept < len(text) and (left := left - cells(text[kept])) >= 0:
        kept += 1
    return text[:kept] + "…" if width > 0 else ""


def cells(text: str) -> int:
    """How many cells of a terminal ``text`` takes: two for a wide character, none for one that joins another."""
    if text.isascii():
        return len(text)
    return sum(
        2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1 for each in text
    )


def padded(text: str, width: int, *, right: bool = False) -> str:
    """``text`` cut or filled with spaces to exactly ``width`` cells."""
    text = cut(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space
