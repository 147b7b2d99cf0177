"""How far generate's ETA is from the truth, replayed in simulated time; beside it the usual ways to tell.

The estimator is generate's own: its board hears of every request, its legs give the order.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from benchmarks.eta.world import PARTITIONS, WORLDS, World, draw_lengths, make_prompts, simulate
from pipeline.generate.board import Board
from pipeline.generate.outcome import Load
from pipeline.generate.prompts import Prompt
from pipeline.generate.runner import Leg, plan_legs
from pipeline.generate.settings import Settings
from pipeline.protocol import Eta

SHARES: Final = (0.02, 0.05, 0.10, 0.25, 0.50)
SEEDS: Final = 40  # where the world is as assumed
OTHER_SEEDS: Final = 12
FIRST_SEED: Final = 1000
EVERY: Final = 30  # ticks between estimates
SMOOTHING: Final = 0.3  # tqdm's default


class Watch:
    """Counts answers as a progress bar does, and tells generate's board if there is one."""

    def __init__(
        self, total: int, settings: Settings | None = None, prompts: Mapping[str, Prompt] | None = None
    ) -> None:
        self.usual: list[tuple[float, float, float]] = []  # (when, total by done/elapsed, by moving average)
        self.etas: list[tuple[float, Eta | None]] = []
        self._total = total
        self._done = self._ticks = 0
        self._last = self._now = 0.0
        self._gap_s: float | None = None  # between two answers, moving average
        self._scope = asyncio.Timeout(None)
        self._board = Board(settings, prompts, lambda: self._now) if settings and prompts else None

    def began(self, now: float, prompt: Prompt) -> None:
        self._now = now
        if self._board:
            self._board.depart(prompt, self._scope)

    def ended(self, now: float, prompt: Prompt, tokens: int, latency_s: float) -> None:
        self._now = now
        gap = now - self._last
        self._gap_s = gap if self._gap_s is None else SMOOTHING * gap + (1 - SMOOTHING) * self._gap_s
        self._done, self._last = self._done + 1, now
        if self._board:
            self._board.land(prompt)
            self._board.finished(prompt, tokens, latency_s)
            self._board.written(prompt, "stop", tokens)

    def lost(self, now: float, prompt: Prompt) -> None:
        self._now = now
        if self._board:
            self._board.land(prompt)

    def tick(self, now: float, running: int, tok_s: float) -> None:
        self._now = now
        self._ticks += 1
        if self._board:
            self._board.loaded(Load(running, tok_s))
        if self._ticks % EVERY == 0 and self._done:
            left = (self._total - self._done) * (self._gap_s or 0.0)
            self.usual.append((now, now * self._total / self._done, now + left))
            if self._board:
                self.etas.append((now, self._board.eta()))


@dataclass(frozen=True)
class Guess:
    """A predicted total, relative to the truth."""

    error: float
    covered: bool | None = None  # None: the method gives no interval
    width: float = 0.0


METHODS: Final = (
    "draftdeck",
    "done/elapsed, same order",
    "moving average, same order",
    "done/elapsed, datasets in turn",
    "moving average, datasets in turn",
)


def measure(quick: bool) -> dict[str, Any]:
    """Replay every world; print the tables."""
    scale, seeds = (10, 4) if quick else (1, OTHER_SEEDS)
    figures: dict[str, Any] = {"prompts": len(make_prompts(scale)), "shares": list(SHARES), "worlds": {}}
    for place, world in enumerate(WORLDS):
        count = SEEDS if not (place or quick) else seeds
        # Other seeds than those that the interval was fitted to.
        with ProcessPoolExecutor() as pool:
            runs = list(pool.map(replay, repeat(world), repeat(scale), range(FIRST_SEED, FIRST_SEED + count)))
        found: dict[str, Any] = {"seeds": count, "hours": round(statistics.fmean(hours for hours, _ in runs), 1)}
        for method in METHODS:
            found[method] = [_summary([guesses[method][at] for _, guesses in runs]) for at in range(len(SHARES))]
        figures["worlds"][world.name] = found
        _table(world.name, found)
    return figures


def replay(world: World, scale: int, seed: int) -> tuple[float, dict[str, list[Guess | None]]]:
    """One run by generate and one dataset by dataset; the hours of the first, and the guesses at every share."""
    prompts = make_prompts(scale)
    settings = Settings((), (), PARTITIONS, Path(), seed=seed)
    legs = plan_legs(settings, prompts.values(), Counter())
    lengths = draw_lengths(world, legs, seed, settings.pilot)
    ours = Watch(len(prompts), settings, prompts)
    true_s = simulate(world, legs, lengths, seed, ours)
    turn = Watch(len(prompts))
    turn_s = simulate(world, _in_turn(prompts), lengths, seed, turn)
    guesses: dict[str, list[Guess | None]] = {
        "draftdeck": [_ours(ours.etas, share, true_s) for share in SHARES],
    }
    for name, watcher, seconds in (("same order", ours, true_s), ("datasets in turn", turn, turn_s)):
        for place, method in ((1, "done/elapsed"), (2, "moving average")):
            guesses[f"{method}, {name}"] = [
                Guess(next(one[place] for one in watcher.usual if one[0] >= share * seconds) / seconds - 1)
                for share in SHARES
            ]
    return true_s / 3600, guesses


def _in_turn(prompts: Mapping[str, Prompt]) -> list[Leg]:
    return [
        Leg("main", one.name, tuple(prompt for prompt in prompts.values() if prompt.partition == one.name))
        for one in PARTITIONS
    ]


def _ours(etas: Sequence[tuple[float, Eta | None]], share: float, true_s: float) -> Guess | None:
    now, eta = next(one for one in etas if one[0] >= share * true_s)
    if eta is None:
        return None
    left = true_s - now
    return Guess((now + eta.seconds) / true_s - 1, eta.low <= left <= eta.high, (eta.high - eta.low) / eta.seconds)


def _summary(guesses: Sequence[Guess | None]) -> dict[str, float | int | None]:
    """Per cent of the true total; the interval's width per cent of the time left. ``none``: runs without a guess."""
    given = [one for one in guesses if one is not None]
    if not given:
        return {"none": len(guesses)}
    found: dict[str, float | int | None] = {
        "none": len(guesses) - len(given),
        "mean": round(100 * statistics.fmean(abs(one.error) for one in given), 1),
        "worst": round(100 * max(abs(one.error) for one in given), 1),
        "bias": round(100 * statistics.fmean(one.error for one in given), 1),
    }
    if given[0].covered is not None:
        found["covered"] = round(100 * statistics.fmean(bool(one.covered) for one in given))
        found["width"] = round(100 * statistics.fmean(one.width for one in given))
    return found


def _table(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}, {found['hours']} h, {found['seeds']} seeds: error of the total in %, mean / worst\n")
    print("| at % of the time | " + " | ".join(f"{100 * share:.0f}" for share in SHARES) + " |")
    print("| --- |" + " --- |" * len(SHARES))
    for method in METHODS:
        cells = [f"{one['mean']} / {one['worst']}" if "mean" in one else "none yet" for one in found[method]]
        print(f"| {method} | " + " | ".join(cells) + " |")
    cells = [
        f"{one['covered']} % in ±{one['width'] / 2:.0f} %" if "covered" in one else "-" for one in found["draftdeck"]
    ]
    print("| its interval covers | " + " | ".join(cells) + " |", flush=True)
