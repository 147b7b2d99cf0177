"""The count of what became of every row: kept, or dropped for a named reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pipeline.prep.roles import printable
from pipeline.protocol import DatasetCount

REASONS: Final = 40
"""Reasons counted by name; rows may give any number of them, a progress line may not."""

OTHER: Final = "other reasons"
NOT_SAMPLED: Final = "not sampled"
"""Rows left aside by the draw: not unusable, just not wanted."""

EXAMPLES: Final = 3  # rows a reason is shown with
EXAMPLE_LENGTH: Final = 300  # characters


class Tally:
    """Counts rows. ``read == kept + sum(dropped)`` always: a row is counted once, when it is decided."""

    def __init__(self) -> None:
        self.kept = 0
        self.tokens = 0
        self.lengths: Counter[int] = Counter()  # tokens of a record, and how many records have so many
        self._skipped = 0
        self.dropped: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.examples: dict[str, list[dict[str, Any]]] = {}
        self.cut_short: list[str] = []  # files that could not be read to their end

    @property
    def read(self) -> int:
        """Rows decided so far."""
        return self.kept + self.dropped.total()

    @property
    def judged(self) -> int:
        """Rows somebody looked at, kept or not."""
        return self.read - self._skipped

    @property
    def usable(self) -> int:
        """Of those, the ones that are records, or would be had they been drawn."""
        return self.kept + self.dropped[NOT_SAMPLED] - self._skipped

    def skip(self) -> None:
        """Count a row that was not drawn and that nobody looked at."""
        self._skipped += 1
        self.dropped[NOT_SAMPLED] += 1

    def keep(self, tokens: int) -> None:
        """Count a row that became a record of so many tokens."""
        self.kept += 1
        self.tokens += tokens
        self.lengths[tokens] += 1

    def drop(self, reason: str, position: int | None = None, row: Any = None) -> None:
        """Count a row that did not."""
        reason = printable(reason, 160)
        if reason != NOT_SAMPLED and reason not in self.dropped and len(self.dropped) >= REASONS:
            reason = OTHER
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if position is not None and len(examples) < EXAMPLES:
            examples.append({"position": position, "row": printable(_shown(row), EXAMPLE_LENGTH)})

    def count(self, *, waiting: int = 0, take: int | None = None, total: int | None = None) -> DatasetCount:
        """For a progress line. ``waiting`` rows are drawn and count as kept as far as ``take`` goes."""
        kept = self.kept + (waiting if take is None else max(0, min(waiting, take - self.kept)))
        spare = self.kept + waiting - kept
        dropped = dict(sorted(self.dropped.items(), key=lambda item: (-item[1], item[0])))
        if spare:
            dropped[NOT_SAMPLED] = dropped.get(NOT_SAMPLED, 0) + spare
        return DatasetCount(
            read=kept + sum(dropped.values()), kept=kept, dropped=dropped, tokens=self.tokens, total=total
        )

    def top_reason(self) -> tuple[str, int]:
        """The reason that took most rows by what is in them; ("", 0) for none."""
        return top_of(self.dropped)


def top_of(dropped: Mapping[str, int]) -> tuple[str, int]:
    """The reason that took most of the rows that were looked at; ("", 0) for none."""
    reasons = [(reason, count) for reason, count in dropped.items() if reason != NOT_SAMPLED]
    return max(reasons, key=lambda item: (item[1], item[0]), default=("", 0))


def _shown(row: Any) -> str:
    if isinstance(row, bytes):
        return row[: 4 * EXAMPLE_LENGTH].decode(errors="replace")
    try:
        return msgspec.json.encode(row)[: 4 * EXAMPLE_LENGTH].decode(errors="replace")
    except Exception:  # any object at all may be a row
        return repr(type(row))
