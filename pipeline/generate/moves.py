"""What changed when the estimate moves: which answers are longer, whether the server is slower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.generate.eta import Remaining, Speed, mean_length, rate
from pipeline.protocol import Eta

MOVED: Final = 0.10
"""Of the time that was left; an end that moves by more, or out of its interval, is told."""

NAMED: Final = 0.25
"""Share of the move that a cause must explain to be named."""

CHECK_S: Final = 600.0
SHOWN_S: Final = 3600.0


@dataclass(frozen=True)
class Answers:
    """A dataset within a partition: what has finished, the mean that is expected, how many are left."""

    finished: int
    total: float  # tokens of the finished
    mean: float
    left: int


@dataclass(frozen=True)
class Point:
    """What was said at a moment, and from what. Times in seconds of one clock, rates in tokens per second."""

    at: float
    eta: Eta
    answers: Mapping[tuple[str, str], Answers]  # by (dataset, partition)
    rates: Mapping[str, float]  # by partition
    pilot: bool = False  # the first estimate after the pilot

    @property
    def end(self) -> float:
        return self.at + self.eta.seconds


class Moves:
    """The estimate against the one that was last told: the pilot's first, later the one at the last move."""

    def __init__(self) -> None:
        self.text = ""
        self._told: Point | None = None
        self._checked = 0.0

    @property
    def begun(self) -> bool:
        """Whether an estimate was told."""
        return self._told is not None

    def hear(self, now: Point) -> None:
        """Look every few minutes; what is found stands in ``text`` for an hour."""
        if self._told is None:
            self._told, self._checked = now, now.at
        elif now.at - self._checked >= CHECK_S:
            self._checked = now.at
            if text := what_changed(self._told, now):
                self._told, self.text = now, text
            elif now.at - self._told.at > SHOWN_S:
                self.text = ""


def piloted(rest: Iterable[Remaining], pilot: int) -> bool:
    """Whether every dataset has its pilot's answers, or nothing that waits."""
    return all(one.lengths.count >= pilot or not one.waiting for one in rest)


def point(at: float, eta: Eta, rest: Iterable[Remaining], speeds: Sequence[Speed], *, pilot: bool = False) -> Point:
    """What ``estimate`` was given, and what it said."""
    open_rest = [one for one in rest if one.waiting or one.running]
    answers = {
        (one.dataset, one.partition): Answers(
            one.lengths.count, one.lengths.total, mean_length(one), one.waiting + len(one.running)
        )
        for one in open_rest
    }
    rates = {speed.partition: found for speed in speeds if (found := rate(speed, open_rest))}
    return Point(at, eta, answers, rates, pilot)


def what_changed(before: Point, now: Point) -> str:
    """Why the end moved, in words; empty while it stays within its interval and within a tenth of the time left.

    Every cause is weighed by the seconds that it moves the end: a dataset by its mean length over what is left of it,
    a partition by its throughput. Time that neither explains went by with less answered than expected.
    """
    moved = now.end - before.end
    within = before.eta.low <= now.end - before.at <= before.eta.high
    if within and abs(moved) <= MOVED * before.eta.seconds:
        return ""
    ago = _ago(now.at - before.at)
    causes = [*_lengths(before, now, "its pilot's" if before.pilot else ago), *_rates(before, now, ago)]
    rest = moved - sum(seconds for seconds, _ in causes)
    span = _span(abs(rest))
    causes.append((rest, f"{span} went by with less answered than expected" if rest > 0 else f"{span} were gained"))
    named = [(seconds, text) for seconds, text in causes if seconds * moved > 0 and seconds / moved >= NAMED]
    named.sort(key=lambda cause: -abs(cause[0]))
    why = "; ".join(text for _, text in named) or "many small changes"
    return f"{_span(abs(moved))} {'later' if moved > 0 else 'sooner'} than said {ago}: {why}"


def _lengths(before: Point, now: Point, against: str) -> list[tuple[float, str]]:
    causes = []
    for key, new in now.answers.items():
        old, at = before.answers.get(key), now.rates.get(key[1])
        if old is None or at is None or new.finished <= old.finished or not old.mean:
            continue
        since = (new.total - old.total) / (new.finished - old.finished)
        word = "longer" if new.mean > old.mean else "shorter"
        # Few answers since then may say the contrary of all: then the means that are expected are compared.
        ratio = since / old.mean if (since > old.mean) == (new.mean > old.mean) else new.mean / old.mean
        causes.append(
            (new.left * (new.mean - old.mean) / at, f"{key[0]}'s answers are {_by(ratio, word)} than {against}")
        )
    return causes


def _rates(before: Point, now: Point, ago: str) -> list[tuple[float, str]]:
    causes = []
    for partition, new in now.rates.items():
        old = before.rates.get(partition)
        if not old:
            continue
        tokens = sum(one.left * one.mean for key, one in now.answers.items() if key[1] == partition)
        change = new / old - 1
        word = "slower" if change < 0 else "faster"
        which = "" if len(now.rates) == 1 else f" at {partition}"
        causes.append(
            (
                tokens / new - tokens / old,
                f"the server is {abs(change):.0%} {word}{which} than {ago}".replace("%", " %"),
            )
        )
    return causes


def _by(ratio: float, word: str) -> str:
    factor = max(ratio, 1 / ratio) if ratio else 1.0
    return f"{factor:.1f}x {word}" if factor >= 1.5 else f"{100 * abs(ratio - 1):.0f} % {word}"


def _ago(seconds: float) -> str:
    return "an hour ago" if 3000 <= seconds < 5400 else f"{_span(seconds)} ago"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
