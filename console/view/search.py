"""Where a search in a log stands: what is found, which part of the file is scanned, which hit comes next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from pipeline.protocol import LogHits


@dataclass(frozen=True)
class Search:
    """A search for ``text`` that began at ``begin``: it scans from there to the end of the file, then what lies before.

    ``hits`` are offsets in ascending order. ``ahead`` is how far the part from ``begin`` on is scanned, ``behind`` the
    part before it.
    """

    text: str
    begin: int
    size: int
    hits: tuple[int, ...] = ()
    ahead: int = 0
    behind: int = 0

    @classmethod
    def start(cls, text: str, begin: int, size: int) -> Search:
        """A search of which nothing is scanned yet."""
        return cls(text=text, begin=begin, size=size, ahead=begin)

    @property
    def next_offset(self) -> int | None:
        """Where the scan goes on; None when the whole file is scanned."""
        if self.ahead < self.size:
            return self.ahead
        return self.behind if self.behind < self.begin else None

    @property
    def scanned(self) -> float:
        """The share of the file that is scanned."""
        return 1.0 if self.size <= 0 else min(1.0, (self.ahead - self.begin + self.behind) / self.size)

    def found(self, asked: int, hits: LogHits) -> Search:
        """The search after the host's answer for the part from ``asked`` on. An empty answer is progress too."""
        ahead = asked >= self.begin
        offsets = hits.offsets if ahead else tuple(offset for offset in hits.offsets if offset < self.begin)
        merged = tuple(sorted({*self.hits, *offsets}))
        reached = max(hits.scanned_to, asked + 1)
        if ahead:
            return replace(self, hits=merged, ahead=reached, size=max(self.size, hits.size))
        return replace(self, hits=merged, behind=min(reached, self.begin))

    def after(self, offset: int) -> int | None:
        """The first hit after ``offset``; None where none is known."""
        index = bisect_right(self.hits, offset)
        return self.hits[index] if index < len(self.hits) else None

    def before(self, offset: int) -> int | None:
        """The last hit before ``offset``; None where none is known."""
        index = bisect_left(self.hits, offset)
        return self.hits[index - 1] if index > 0 else None
