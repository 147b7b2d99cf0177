"""How long the rest takes, from tokens rather than from requests: pure functions.

Short answers finish first, so answers counted alone say too little time. Here an answer that still runs counts with the
tokens it has so far: mean length = (tokens of the finished + tokens so far of the running) ÷ finished.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.protocol import Eta

ENOUGH = 3
"""Finished answers that every unfinished dataset must have before there is an estimate."""

DRIFT = 0.05
"""Least relative standard deviation assumed of throughput over the rest of the run; from replays (benchmarks/eta)."""

NORMAL_90 = 1.2816


@dataclass
class Lengths:
    """Answer lengths of the finished, as sums."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, tokens: float) -> None:
        self.count += 1
        self.total += tokens
        self.squares += tokens * tokens

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, (self.squares - self.total * self.total / self.count) / (self.count - 1)))


@dataclass(frozen=True)
class Remaining:
    """What is left of a dataset within a partition."""

    dataset: str
    partition: str
    waiting: int
    running: tuple[float, ...]  # tokens so far of each
    lengths: Lengths
    limit: float = math.inf  # max_new_tokens


@dataclass(frozen=True)
class Speed:
    """A partition's throughput: tokens per second of one stream while ``slots`` run at once."""

    partition: str
    slots: int
    stream_tok_s: float | None  # None: not measured yet
    spread: float = 0.0  # relative standard deviation of what was measured


def estimate(rest: Iterable[Remaining], speeds: Sequence[Speed], *, side_by_side: bool = False) -> Eta | None:
    """Seconds left with a 10 to 90 % interval; None while there is too little to go by.

    Partitions run in turn, so their times add up, or side by side, so the longest counts. Assumes that streams share
    the throughput equally and that there are no outages.
    """
    open_rest = [one for one in rest if one.waiting or one.running]
    if not open_rest:
        return Eta(0.0, 0.0, 0.0, "nothing is left")
    if any(one.lengths.count < ENOUGH for one in open_rest):
        return None
    times: list[tuple[float, float]] = []  # (seconds, their variance) by partition
    bases: list[str] = []
    for speed in speeds:
        mine = [one for one in open_rest if one.partition == speed.partition]
        if not mine:
            continue
        tok_s = rate(speed, mine)
        if not tok_s:
            return None
        tokens, variance = _tokens(mine)
        times.append((tokens / tok_s, variance / tok_s**2))
        bases.append(f"{speed.partition} {tokens:,.0f} tokens at {tok_s:,.0f} tok/s")
    if not times:
        return None
    seconds, variance = max(times) if side_by_side else (sum(t for t, _ in times), sum(v for _, v in times))
    # Over the rest of the run a speed that changes averages out, but not all of it.
    drift = max([DRIFT, *(speed.spread / 2 for speed in speeds)])
    relative = math.sqrt(variance / seconds**2 + drift**2) if seconds else drift
    factor = math.exp(min(NORMAL_90 * relative, 5.0))
    finished = sum(one.lengths.count for one in open_rest)
    running = sum(len(one.running) for one in open_rest)
    basis = f"{finished:,} answers and {running:,} running: {'; '.join(bases)}"
    return Eta(seconds, seconds / factor, seconds * factor, basis)


def rate(speed: Speed, rest: Iterable[Remaining]) -> float | None:
    """A partition's tokens per second with as many streams as its slots and what is left of it allow."""
    left = sum(one.waiting + len(one.running) for one in rest if one.partition == speed.partition)
    return speed.stream_tok_s * min(speed.slots, left) if speed.stream_tok_s else None


def mean_length(one: Remaining) -> float:
    """Expected tokens of an answer, the running ones counted as cut short; never above the limit."""
    return min((one.lengths.total + sum(one.running)) / one.lengths.count, one.limit)


def _tokens(rest: Iterable[Remaining]) -> tuple[float, float]:
    """Tokens still to be generated, and the variance of that: of the mean, and of the answers themselves."""
    tokens = variance = 0.0
    for one in rest:
        count = one.waiting + len(one.running)
        mean = mean_length(one)
        # A few finished answers, short ones first, look more alike than all of them will.
        deviation = max(one.lengths.deviation, 0.5 * mean)
        tokens += count * mean
        variance += deviation**2 * (count**2 / one.lengths.count + count)
    return max(tokens, 1.0), variance


def time_limit(budget: int, stream_tok_s: float | None, floor_s: float) -> float:
    """Seconds to wait for one answer: three times what its whole budget takes, and never less than ``floor_s``.

    Unmeasured, one token a second is assumed: a limit that is too short would cut the long answers and generate them
    again and again.
    """
    return floor_s + 3 * budget / stream_tok_s if stream_tok_s else max(floor_s, float(budget))
