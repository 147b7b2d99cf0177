"""What became of the rows of each dataset and of the tokens of its answers, counted and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.protocol import DatasetCount

NAMED: Final = 4  # reasons a line names


@dataclass
class Count:
    """One dataset's."""

    total: int
    kept: int = 0
    heldout: int = 0
    truncated: int = 0  # kept, though cut by the budget
    tokens: int = 0  # of kept rows, prompts included
    loss_tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)  # reason to answer tokens
    answered: int = 0  # answer tokens, kept or lost

    def drop(self, reason: str, tokens: int) -> None:
        """Count a row that is left out, and the answer tokens that go with it."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if tokens:
            self.lost[reason] = self.lost.get(reason, 0) + tokens

    def public(self) -> DatasetCount:
        """For a progress line."""
        read = self.kept + sum(self.dropped.values())
        return DatasetCount(read=read, kept=self.kept, dropped=dict(self.dropped), tokens=self.tokens, total=self.total)


def lost_share(counts: Mapping[str, Count]) -> float:
    """The share of all answer tokens that is lost; 0 where there are none."""
    answered = sum(count.answered for count in counts.values())
    return sum(sum(count.lost.values()) for count in counts.values()) / answered if answered else 0.0


def lost(counts: Mapping[str, Count]) -> str:
    """Shares of all answer tokens: ``1.2% of the answer tokens lost (B3 repetitive 0.81%, B1 aborted 0.39%)``."""
    answered = sum(count.answered for count in counts.values())
    parts = sorted(
        ((tokens, f"{name} {reason}") for name, count in counts.items() for reason, tokens in count.lost.items()),
        key=lambda part: (-part[0], part[1]),
    )
    text = f"{lost_share(counts):.1%} of the answer tokens lost"
    named = ", ".join(f"{what} {tokens / answered:.2%}" for tokens, what in parts[:NAMED])
    return f"{text} ({named}{', …' if len(parts) > NAMED else ''})" if parts else text


def left_out(counts: Mapping[str, Count]) -> str:
    """Rows in neither part, by the reasons that took most: ``; 5 left out (B3 empty 4, B1 repetitive 1)``."""
    parts = sorted(
        ((rows, f"{name} {reason}") for name, count in counts.items() for reason, rows in count.dropped.items()),
        key=lambda part: (-part[0], part[1]),
    )
    if not parts:
        return ""
    named = ", ".join(f"{what} {rows:,}" for rows, what in parts[:NAMED])
    return f"; {sum(rows for rows, _ in parts):,} left out ({named}{', …' if len(parts) > NAMED else ''})"


def table(counts: Mapping[str, Count]) -> list[str]:
    """A line a dataset for the log: rows, tokens, and what share of its answer tokens each reason took."""
    columns = f"{'train':>9}{'held out':>10}{'truncated':>11}{'left out':>10}{'tokens':>15}{'with loss':>15}"
    lines = [f"{'dataset':<9}{columns}  answer tokens lost"]
    for name, count in counts.items():
        gone = [f"{reason} {tokens / count.answered:.2%}" for reason, tokens in sorted(count.lost.items())]
        lines.append(
            f"{name:<9}{count.kept - count.heldout:>9,}{count.heldout:>10,}{count.truncated:>11,}"
            f"{sum(count.dropped.values()):>10,}{count.tokens:>15,}{count.loss_tokens:>15,}  {', '.join(gone) or '–'}"
        )
    return lines
