"""Worlds in which a run of generate is replayed: 83,288 prompts, their answers' lengths, a server whose speed drifts.

Streams share the server equally, so a clock of tokens per stream orders all ends; real time is taken from it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Final, Protocol

from pipeline.generate.prompts import Prompt
from pipeline.generate.runner import Leg
from pipeline.generate.settings import Partition, Settings

DATASETS: Final = {  # rows, mean tokens of an answer; together 83,288 and 791
    "B1": (30_000, 180),
    "B2": (16_000, 300),
    "B3": (10_000, 600),
    "B4": (8_000, 800),
    "B5": (6_000, 1100),
    "B6": (5_000, 1600),
    "B7": (5_288, 2300),
    "B8": (3_000, 5500),
}
LONG: Final = frozenset({"B8"})
SHAPE: Final = 0.9  # standard deviation of the logarithm of the lengths
SHORT_AT_ONCE, LONG_AT_ONCE = 150, 32
PARTITIONS: Final = (Partition("short", SHORT_AT_ONCE, 4096), Partition("long", LONG_AT_ONCE, 10_240))
# The server makes MOST * n / (HALF + n) tokens/s with n running: 830 at 150, 500 at 32.
MOST, HALF = 1010.9, 32.7
DRIFT_S: Final = 300.0  # the speed changes this often
TICK_S: Final = 10.0
HOUR: Final = 3600.0


@dataclass(frozen=True)
class World:
    """What a run meets. ``longer``: by how much a dataset's answers outgrow those of its pilot."""

    name: str
    drift: float = 0.05  # relative standard deviation of the server's speed
    drift_over_s: float = 3 * HOUR  # the time after which it has mostly forgotten itself
    noise: float = 0.05  # of what the server says of its speed in one moment
    longer: Mapping[str, float] = field(default_factory=dict)
    prefill: float = 0.0  # tokens that could have been generated while a prompt is read
    outage_at: float = math.inf  # seconds; from then on the server is slower
    outage_s: float = 0.0
    slower: float = 0.0


WORLDS: Final = (
    World("as assumed"),
    World("B5's answers 3x its pilot's", longer={"B5": 3.0}),
    World("an hour's outage at 12 h, 30 % slower after it", outage_at=12 * HOUR, outage_s=HOUR, slower=0.3),
    World("reading a prompt costs 60 tokens", prefill=60.0),
)


class Watcher(Protocol):
    """Hears of everything that happens; times in seconds."""

    def began(self, now: float, prompt: Prompt) -> None: ...
    def ended(self, now: float, prompt: Prompt, tokens: int, latency_s: float) -> None: ...
    def lost(self, now: float, prompt: Prompt) -> None: ...
    def tick(self, now: float, running: int, tok_s: float) -> None: ...


@cache
def make_prompts(scale: int) -> dict[str, Prompt]:
    """All prompts by key, in the order of the datasets; only one of ``scale``."""
    settings = Settings((), (), PARTITIONS, Path())
    found = {}
    for dataset, (rows, _) in DATASETS.items():
        partition = PARTITIONS[dataset in LONG]
        sampling = settings.sampling(partition, None)
        for row in range(rows // scale):
            key = f"{dataset}/{row}/0"
            found[key] = Prompt(key, dataset, partition.name, sampling, "", Path(), 0)
    return found


def location(mean: float, limit: float) -> float:
    """The logarithm's mean that gives lengths cut at the limit this mean."""
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _cut_mean(middle, limit) < mean else (low, middle)
    return low


def _cut_mean(place: float, limit: float) -> float:
    below = NormalDist().cdf
    at = (math.log(limit) - place) / SHAPE
    return math.exp(place + SHAPE**2 / 2) * below(at - SHAPE) + limit * (1 - below(at))


def draw_lengths(world: World, legs: Sequence[Leg], seed: int, pilot: int) -> dict[str, int]:
    """Tokens of every answer."""
    draw = random.Random(seed)
    places = {name: location(mean, _limit(name)) for name, (_, mean) in DATASETS.items()}
    seen = dict.fromkeys(DATASETS, 0)
    found = {}
    for leg in legs:
        for prompt in leg.prompts:
            name = prompt.dataset
            seen[name] += 1
            factor = world.longer.get(name, 1.0) if seen[name] > pilot else 1.0
            length = factor * draw.lognormvariate(places[name], SHAPE)
            found[prompt.key] = max(1, round(min(length, prompt.sampling.max_new_tokens)))
    return found


def _limit(dataset: str) -> int:
    return PARTITIONS[dataset in LONG].max_new_tokens


def speeds(world: World, seed: int) -> Callable[[float], float]:
    """The server's speed relative to its mean, by time: a slow random walk that is drawn back to 1."""
    draw = random.Random(f"speed {seed}")
    kept = math.exp(-DRIFT_S / world.drift_over_s)
    fresh = world.drift * math.sqrt(1 - kept**2)
    at = [draw.gauss(0, world.drift)]

    def speed(now: float) -> float:
        step = int(now / DRIFT_S)
        while len(at) <= step:
            at.append(kept * at[-1] + draw.gauss(0, fresh))
        return math.exp(at[step]) * (1 - world.slower if now >= world.outage_at else 1.0)

    return speed


def simulate(world: World, legs: Sequence[Leg], lengths: Mapping[str, int], seed: int, watcher: Watcher) -> float:
    """Run the legs one after the other; seconds that it takes."""
    speed, noise = speeds(world, seed), random.Random(f"noise {seed}")
    slots = {one.name: one.concurrency for one in PARTITIONS}
    now = turned = 0.0  # turned: tokens that each stream could have had so far
    next_tick, outage_at = TICK_S, world.outage_at
    running: list[tuple[float, str, float, Prompt]] = []  # (turned at its end, key, began, prompt)
    generating = 0  # tokens of the answers in flight
    for leg in legs:
        waiting = deque(leg.prompts)
        while waiting or running:
            while waiting and len(running) < slots[leg.partition]:
                prompt = waiting.popleft()
                tokens = lengths[prompt.key]
                generating += tokens
                heapq.heappush(running, (turned + world.prefill + tokens, prompt.key, now, prompt))
                watcher.began(now, prompt)
            stream = MOST / (HALF + len(running)) * speed(now)
            end = now + (running[0][0] - turned) / stream
            if end > next_tick:
                turned += (next_tick - now) * stream
                now, next_tick = next_tick, next_tick + TICK_S
                share = generating / (generating + world.prefill * len(running))
                watcher.tick(now, len(running), stream * len(running) * share * noise.gauss(1, world.noise))
                if now >= outage_at:
                    # What was in flight is lost and asked again once the server is back.
                    for *_, prompt in running:
                        watcher.lost(now, prompt)
                        waiting.appendleft(prompt)
                    running, generating, outage_at = [], 0, math.inf
                    now += world.outage_s
                    next_tick = now + TICK_S
                continue
            turned, _, began, prompt = heapq.heappop(running)
            now = end
            generating -= lengths[prompt.key]
            watcher.ended(now, prompt, lengths[prompt.key], now - began)
    return now
