"""Which rows are not used: a pure function of the rows, their order, and the threshold.

Held-out rows are decided first, so that of two alike on both sides of the split the training side goes. Within a side
the first in the given order stays. Only rows that stay make others go: a chain of rows, each like the next, does not
vanish as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pipeline.dedup import minhash
from pipeline.dedup.minhash import Signatures
from pipeline.dedup.rows import Digests

DUPLICATE: Final = "duplicate"
NEAR: Final = "near duplicate"
OF_HELDOUT: Final = " of a held-out row"


@dataclass
class Rows:
    """All rows by place, in the order of the sets; ``signatures`` is (rows, PLACES)."""

    signatures: Signatures
    keys: list[str] = field(default_factory=list)
    heldout: list[bool] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)  # of an answers set
    digests: list[Digests] = field(default_factory=list)


@dataclass(frozen=True)
class Double:
    """A row that goes, the row it doubles, by place."""

    row: int
    of: int
    reason: str
    similarity: float


def doubles(rows: Rows, threshold: float) -> Iterator[Double]:
    """The rows that are not used, in the order in which they are decided."""
    exact = _Exact()
    near = _Near(rows.signatures, threshold)
    for row in sorted(range(len(rows.keys)), key=lambda at: not rows.heldout[at]):  # held-out rows stay first
        of, reason, similarity = exact.find(rows.digests[row], rows.samples[row]), DUPLICATE, 1.0
        if of is None:
            reason = NEAR
            of, similarity = near.find(row)
        if of is None:
            exact.keep(row, rows.digests[row], rows.samples[row])
            near.keep(row)
            continue
        if rows.heldout[of] and not rows.heldout[row]:
            reason += OF_HELDOUT
        yield Double(row, of, reason, similarity)


class _Exact:
    """The conversations that stay, and the prompts that samples among them answer."""

    def __init__(self) -> None:
        self._whole: dict[bytes, int] = {}
        self._answered: dict[bytes, int] = {}

    def find(self, digests: Digests, sample: bool) -> int | None:
        """The row that says the same: as a whole, a sample that answers this prompt, or a prompt this one answers."""
        of = self._whole.get(digests.whole)
        if of is not None:
            return of
        if not sample:
            return self._answered.get(digests.whole)
        return next((self._whole[prompt] for prompt in digests.prompts if prompt in self._whole), None)

    def keep(self, row: int, digests: Digests, sample: bool) -> None:
        self._whole[digests.whole] = row
        if sample:
            for prompt in digests.prompts:
                self._answered.setdefault(prompt, row)


class _Near:
    """The rows that stay, by the buckets they share with others."""

    def __init__(self, signatures: Signatures, threshold: float) -> None:
        self._signatures = signatures
        self._threshold = threshold
        self._buckets = minhash.buckets(signatures, threshold)
        self._members: dict[int, list[int]] = {}

    def find(self, row: int) -> tuple[int | None, float]:
        """The most similar of the rows that stay, if one is over the threshold; of equals, the first decided."""
        met: dict[int, None] = {}
        for bucket in self._shared(row):
            met.update(dict.fromkeys(self._members.get(bucket, ())))
        if not met:
            return None, 0.0
        places = list(met)
        alike = minhash.similarity(self._signatures[row], self._signatures[places])
        best = int(np.argmax(alike))
        if alike[best] < self._threshold:
            return None, 0.0
        first = min(place for place, value in zip(places, alike, strict=True) if value == alike[best])
        return first, float(alike[best])

    def keep(self, row: int) -> None:
        for bucket in self._shared(row):
            self._members.setdefault(bucket, []).append(row)

    def _shared(self, row: int) -> Sequence[int]:
        numbers: list[int] = self._buckets[row].tolist()
        return [number for number in numbers if number >= 0]
