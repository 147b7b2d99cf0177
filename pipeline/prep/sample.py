"""A uniform draw of N rows from a stream of unknown length, in memory that grows with N alone."""

from __future__ import annotations

import hashlib
import heapq
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SPARE: Final = 0.25
"""More rows are drawn than asked for by this share, for those that turn out too long once they are tokenized."""


def lot(seed: int, position: int) -> int:
    """The number a row draws: 64 bits that depend on the seed and its position alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest())


class Draw(Generic[T]):
    """Keeps the rows with the lowest lots among those offered.

    A row whose lot is already too high is told so by ``wants`` before anybody decodes it, so a set of millions costs
    little more than its decompression. Only usable rows are offered: unusable ones never take a place.
    """

    def __init__(self, take: int, seed: int) -> None:
        self.take = take
        self._capacity = take + max(16, int(take * SPARE))
        self._seed = seed
        self._heap: list[tuple[int, int, str, T]] = []  # (-lot, position, content hash, item): the highest lot on top
        self._hashes: set[str] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def wants(self, position: int) -> bool:
        """Whether the row at ``position`` could still be drawn."""
        return len(self._heap) < self._capacity or lot(self._seed, position) < -self._heap[0][0]

    def holds(self, content: str) -> bool:
        """Whether a row of the same content is among those drawn."""
        return content in self._hashes

    def offer(self, position: int, content: str, item: T) -> bool:
        """Take a row in; whether another one had to go for it."""
        self._hashes.add(content)
        heapq.heappush(self._heap, (-lot(self._seed, position), position, content, item))
        if len(self._heap) <= self._capacity:
            return False
        self._hashes.discard(heapq.heappop(self._heap)[2])
        return True

    def drawn(self) -> list[T]:
        """What was drawn, the lowest lot first; the draw is empty afterwards."""
        items = [entry[3] for entry in sorted(self._heap, key=lambda entry: (-entry[0], entry[1]))]
        self._heap.clear()
        self._hashes.clear()
        return items
