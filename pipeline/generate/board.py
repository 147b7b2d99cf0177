"""The run's state in numbers: what is answered, what is in flight, how fast it goes, how long the rest takes."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.generate.eta import Lengths, Remaining, Speed, estimate, time_limit
from pipeline.generate.moves import Moves, piloted, point
from pipeline.generate.outcome import Load
from pipeline.generate.prompts import Prompt
from pipeline.generate.settings import Settings
from pipeline.protocol import DatasetCount, Eta

FULL: Final = 0.7  # share of the slots in flight
WINDOW_S: Final = 60.0
FRESH_S: Final = 20.0
SPEED_S: Final = 90.0
"""The speed is the mean of the last so many seconds: a server's newest figure is that of a moment."""

KINDS: Final = 20
OTHER: Final = "other reasons"
SAMPLES: Final = 400
"""Finished answers whose speed counts."""


@dataclass
class DatasetBoard:
    total: int = 0
    answered: int = 0
    tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    finish: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # of answers that were kept


@dataclass
class PartBoard:
    """A dataset's share of a partition: what the estimate is made of."""

    waiting: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    limit: int = 1


@dataclass(frozen=True)
class Flight:
    prompt: Prompt
    started: float  # monotonic
    scope: asyncio.Timeout  # ends the request when it is told to


class Board:
    def __init__(
        self, settings: Settings, prompts: Mapping[str, Prompt], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._clock = clock  # seconds
        self.datasets: dict[str, DatasetBoard] = {}
        self.parts: dict[tuple[str, str], PartBoard] = {}
        self.flights: dict[str, Flight] = {}
        self.troubles: Counter[str] = Counter()  # attempts that were followed by another, by kind
        self.servers = 1  # that are there; each has a partition's concurrency of slots
        self.moves = Moves()
        self._resumed = False
        self.live: Load | None = None
        self._live_at = 0.0
        self._live_speeds: deque[tuple[float, float]] = deque()  # (when, tokens per second of one stream)
        self._speeds: dict[str, deque[tuple[int, float]]] = {
            one.name: deque(maxlen=SAMPLES) for one in settings.partitions
        }
        self._recent: deque[tuple[float, int]] = deque()  # (when answered, tokens)
        self._began: float | None = None
        self._tokens_here = 0
        for prompt in prompts.values():
            self.dataset(prompt.dataset).total += 1
            part = self.part(prompt)
            part.waiting += 1
            part.limit = max(part.limit, prompt.sampling.max_new_tokens)

    def dataset(self, name: str) -> DatasetBoard:
        return self.datasets.setdefault(name, DatasetBoard())

    def part(self, prompt: Prompt) -> PartBoard:
        return self.parts.setdefault((prompt.dataset, prompt.partition), PartBoard())

    def answered_before(
        self, prompt: Prompt, finish: str, tokens: int, latency_s: float, faults: Iterable[str] = ()
    ) -> None:
        """An answer of an earlier run."""
        self._resumed = True
        self.part(prompt).waiting -= 1
        self._count(prompt, finish, tokens, faults)
        self._speeds[prompt.partition].append((tokens, latency_s))

    def depart(self, prompt: Prompt, scope: asyncio.Timeout) -> None:
        """A request goes out."""
        now = self._clock()
        self._began = self._began or now
        self.flights[prompt.key] = Flight(prompt, now, scope)
        self.part(prompt).waiting -= 1

    def land(self, prompt: Prompt) -> float:
        """The request is over, whatever came of it; its age in seconds. The prompt waits until it is settled."""
        self.part(prompt).waiting += 1
        return self._clock() - self.flights.pop(prompt.key).started

    def finished(self, prompt: Prompt, tokens: int, latency_s: float) -> None:
        """An answer came; it counts as answered when it is written."""
        self.part(prompt).waiting -= 1
        samples = self._speeds[prompt.partition]
        slots = self._slots(prompt.partition)
        # In a tail with few streams each is faster than when all slots are full.
        if len(self.flights) + 1 >= slots / 2 or not samples:
            samples.append((tokens, latency_s))
        self._recent.append((self._clock(), tokens))
        self._tokens_here += tokens

    def written(self, prompt: Prompt, finish: str, tokens: int, faults: Iterable[str] = ()) -> None:
        self._count(prompt, finish, tokens, faults)

    def set_aside(self, prompt: Prompt, kind: str) -> None:
        """A prompt without an answer; kinds beyond the first few of a dataset are counted together."""
        self.part(prompt).waiting -= 1
        _count_kind(self.dataset(prompt.dataset).dropped, kind)

    def retried(self, kind: str) -> None:
        """An attempt failed and another follows."""
        _count_kind(self.troubles, kind)

    def loaded(self, load: Load | None) -> None:
        """The server's word on its speed, every few seconds; the mean counts while the slots are full."""
        now = self._clock()
        self.live, self._live_at = load, now
        slots = sum(self._slots(one.name) for one in self.settings.partitions if self.part_flying(one.name))
        if load is not None and load.running and len(self.flights) >= FULL * slots > 0:
            self._live_speeds.append((now, load.tok_s / load.running))
        while self._live_speeds and now - self._live_speeds[0][0] > SPEED_S:
            self._live_speeds.popleft()

    @property
    def total(self) -> int:
        return sum(one.total for one in self.datasets.values())

    @property
    def answered(self) -> int:
        return sum(one.answered for one in self.datasets.values())

    @property
    def errors(self) -> int:
        return sum(sum(one.dropped.values()) for one in self.datasets.values())

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.datasets.values())

    def part_flying(self, partition: str) -> int:
        """Requests of a partition that are in flight."""
        return sum(1 for one in self.flights.values() if one.prompt.partition == partition)

    def stream_speed(self, partition: str) -> float | None:
        """Tokens per second of one stream: the server's word while the slots are full, else from finished answers."""
        if self._live_speeds and self.part_flying(partition) >= FULL * self._slots(partition):
            return statistics.fmean(speed for _, speed in self._live_speeds)
        samples = self._speeds[partition]
        seconds = sum(latency for _, latency in samples)
        return sum(tokens for tokens, _ in samples) / seconds if seconds > 0 else None

    def _spread(self) -> float:
        """How much the server's speed has changed, relative to its mean."""
        speeds = [speed for _, speed in self._live_speeds]
        return statistics.pstdev(speeds) / statistics.fmean(speeds) if len(speeds) > 1 else 0.0

    def expire(self) -> None:
        """End the requests that take longer than their budget can explain at today's speed."""
        now = self._clock()
        speeds = {one.name: self.stream_speed(one.name) for one in self.settings.partitions}
        for flight in self.flights.values():
            speed = speeds[flight.prompt.partition]
            limit = time_limit(flight.prompt.sampling.max_new_tokens, speed, self.settings.timeout_floor_s)
            if now - flight.started > limit and not flight.scope.expired():
                flight.scope.reschedule(asyncio.get_running_loop().time())

    def eta(self) -> Eta | None:
        now = self._clock()
        running: dict[tuple[str, str], list[float]] = {}
        spread = self._spread()
        speeds = [
            Speed(one.name, self._slots(one.name), self.stream_speed(one.name), spread)
            for one in self.settings.partitions
        ]
        by_name = {one.partition: one.stream_tok_s or 0.0 for one in speeds}
        for flight in self.flights.values():
            so_far = min(
                (now - flight.started) * by_name[flight.prompt.partition], flight.prompt.sampling.max_new_tokens
            )
            running.setdefault((flight.prompt.dataset, flight.prompt.partition), []).append(so_far)
        rest = [
            Remaining(dataset, name, part.waiting, tuple(running.get((dataset, name), ())), part.lengths, part.limit)
            for (dataset, name), part in self.parts.items()
        ]
        eta = estimate(rest, speeds, side_by_side=self.settings.side_by_side)
        # Earlier ones rest on the pilot's short answers: that they move is no news.
        if eta is not None and (self.moves.begun or piloted(rest, self.settings.pilot)):
            self.moves.hear(point(now, eta, rest, speeds, pilot=not self.moves.begun and not self._resumed))
        return eta

    def counts(self) -> dict[str, DatasetCount]:
        """``read`` is what is settled, ``total`` all prompts of the dataset.

        A request in flight is no progress: a server that dies under each one must not look as if it were.
        """
        return {
            name: DatasetCount(
                read=one.answered + sum(one.dropped.values()),
                kept=one.answered,
                dropped=dict(one.dropped),
                tokens=one.tokens,
                total=one.total,
                faulty=dict(one.faults),
            )
            for name, one in self.datasets.items()
        }

    def figures(self) -> dict[str, float]:
        now = self._clock()
        while self._recent and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        elapsed = now - self._began if self._began is not None else 0.0
        window = max(min(WINDOW_S, elapsed), 1e-3)
        fresh = self.live is not None and now - self._live_at < FRESH_S and bool(self.flights)
        windowed = sum(tokens for _, tokens in self._recent) / window
        return {
            "tok_s": self.live.tok_s if fresh and self.live is not None else windowed,
            "tok_s_mean": self._tokens_here / elapsed if elapsed else 0.0,
            "req_s": len(self._recent) / window,
            "mean_tokens": self.tokens / self.answered if self.answered else 0.0,
            "in_flight": float(len(self.flights)),
            "errors": float(self.errors),
            "retries": float(self.troubles.total()),
            "length": float(sum(one.finish["length"] for one in self.datasets.values())),
            **{f"retries: {kind}": float(count) for kind, count in self.troubles.items()},
        }

    def oldest(self, count: int) -> list[tuple[str, float]]:
        """The keys that have been in flight longest, with their age in seconds."""
        now = self._clock()
        flights = sorted(self.flights.values(), key=lambda flight: flight.started)
        return [(flight.prompt.key, now - flight.started) for flight in flights[:count]]

    def tail(self, partition: str, why: str) -> str:
        """The last answers that others wait for, where they leave most slots empty; "" where they do not."""
        flights = [one for one in self.flights.values() if partition in ("", one.prompt.partition)]
        names = {one.prompt.partition for one in flights}
        if not flights or 2 * len(flights) > max(self._slots(name) for name in names):
            return ""
        longest_s = self._clock() - min(one.started for one in flights)
        longest = f"{longest_s / 60:.0f} min" if longest_s >= 60 else f"{longest_s:.0f} s"
        datasets = ", ".join(sorted({one.prompt.dataset for one in flights}))
        return f"tail: {len(flights)} answers of {datasets} {why}, longest {longest}"

    def _slots(self, partition: str) -> int:
        return self.servers * next(one.concurrency for one in self.settings.partitions if one.name == partition)

    def _count(self, prompt: Prompt, finish: str, tokens: int, faults: Iterable[str]) -> None:
        dataset = self.dataset(prompt.dataset)
        dataset.answered += 1
        dataset.tokens += tokens
        dataset.finish[finish] += 1
        dataset.faults.update(faults)
        self.part(prompt).lengths.add(tokens)


def _count_kind(counts: Counter[str], kind: str) -> None:
    counts[kind if kind in counts or len(counts) < KINDS else OTHER] += 1
