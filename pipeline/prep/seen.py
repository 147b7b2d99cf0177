"""The content hashes met so far, in ten to twenty bytes each: a set of millions of strings would fill the memory."""

from __future__ import annotations

from array import array
from typing import Final

FIRST: Final = 1 << 12
FULL: Final = 0.7
"""Of the slots, the share from which on their number is doubled."""


class Seen:
    """A set of 64-bit hashes, written as 16 hex digits."""

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * FIRST  # 0: free
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def add(self, content: str) -> bool:
        """Take a hash in; whether it is a new one."""
        number = int(content, 16) or 1
        at = self._place(number)
        if self._slots[at]:
            return False
        self._slots[at] = number
        self._used += 1
        if self._used > FULL * len(self._slots):
            self._double()
        return True

    def _place(self, number: int) -> int:
        """The slot that holds a number, else the free one it belongs into."""
        slots, last = self._slots, len(self._slots) - 1
        at = number & last
        while slots[at] and slots[at] != number:
            at = (at + 1) & last
        return at

    def _double(self) -> None:
        old = self._slots
        self._slots = array("Q", [0]) * (2 * len(old))
        for number in old:
            if number:
                self._slots[self._place(number)] = number
