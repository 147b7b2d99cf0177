"""The draft's vocabulary: the target's most frequent tokens in what it wrote."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


class VocabularyCount:
    """Counts the tokens that carry loss."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, input_ids: Sequence[int], loss_mask: Iterable[int]) -> None:
        """Count a sample."""
        self._counts.update(itertools.compress(input_ids, loss_mask))

    def chosen(self, size: int, target_size: int) -> dict[str, Any]:
        """The ``size`` most frequent ids (of equals, the lower), and the share of all counted tokens they cover.

        A training set with fewer different tokens is filled up with the lowest ids it lacks: the draft's head has a
        fixed size.
        """
        size = min(size, target_size)
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:size]
        ids = [token for token, _ in ranked]
        total = self._counts.total()
        present = set(ids)
        filled = list(
            itertools.islice((token for token in range(target_size) if token not in present), size - len(ids))
        )
        return {
            "size": size,
            "target_size": target_size,
            "tokens": total,
            "different": len(self._counts),
            "coverage": sum(count for _, count in ranked) / total if total else 0.0,
            "filled": len(filled),
            "ids": ids + filled,
        }
