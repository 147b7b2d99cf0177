"""The estimate: properties for any state, and a simulated run against which the method must hold."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generate.board import Board
from pipeline.generate.eta import ENOUGH, Lengths, Remaining, Speed, estimate, mean_length, time_limit
from pipeline.generate.outcome import Load
from pipeline.generate.prompts import Prompt
from pipeline.generate.settings import Partition, Settings
from pipeline.protocol import Eta


def lengths(*tokens: float) -> Lengths:
    found = Lengths()
    for one in tokens:
        found.add(one)
    return found


tokens = st.floats(1, 20_000)
rest = st.builds(
    lambda dataset, partition, waiting, running, finished: Remaining(
        dataset, partition, waiting, tuple(running), lengths(*finished), 20_000
    ),
    st.sampled_from(["B1", "B2", "B8"]),
    st.sampled_from(["short", "long"]),
    st.integers(0, 50_000),
    st.lists(tokens, max_size=20),
    st.lists(tokens, max_size=40),
)
speeds = st.tuples(st.floats(0.1, 200), st.floats(0.1, 200)).map(
    lambda pair: [Speed("short", 150, pair[0]), Speed("long", 32, pair[1])]
)


@given(st.lists(rest, max_size=6), speeds, st.booleans())
def test_any_state(state: list[Remaining], at: list[Speed], side_by_side: bool) -> None:
    eta = estimate(state, at, side_by_side=side_by_side)
    left = [one for one in state if one.waiting or one.running]
    if not left:
        assert eta == Eta(0.0, 0.0, 0.0, "nothing is left")
    elif any(one.lengths.count < ENOUGH for one in left):
        assert eta is None
    else:
        assert eta is not None
        assert 0 <= eta.low <= eta.seconds <= eta.high < math.inf
        assert eta.basis


@given(st.lists(rest.filter(lambda one: one.lengths.count >= ENOUGH), min_size=1, max_size=6), speeds)
def test_more_to_do_takes_longer_and_twice_the_speed_half_the_time(state: list[Remaining], at: list[Speed]) -> None:
    eta = estimate(state, at)
    assert eta is not None
    first = state[0]
    more = Remaining(first.dataset, first.partition, first.waiting + 10_000, first.running, first.lengths, first.limit)
    later = estimate([more, *state[1:]], at)
    assert later is not None
    assert later.seconds > eta.seconds
    doubled = estimate(state, [Speed(one.partition, one.slots, (one.stream_tok_s or 0) * 2) for one in at])
    assert doubled is not None
    assert doubled.seconds == pytest.approx(eta.seconds / 2)


def test_side_by_side_is_the_longest_and_in_turn_the_sum() -> None:
    state = [
        Remaining("B1", "short", 1000, (), lengths(100, 100, 100)),
        Remaining("B8", "long", 100, (), lengths(1000, 1000, 1000)),
    ]
    at = [Speed("short", 10, 10.0), Speed("long", 10, 5.0)]
    turn, side = estimate(state, at), estimate(state, at, side_by_side=True)
    assert turn is not None
    assert side is not None
    assert turn.seconds == pytest.approx(1000 + 2000)
    assert side.seconds == pytest.approx(2000)
    assert estimate(state, [Speed("short", 10, 10.0), Speed("long", 10, None)]) is None


def test_running_answers_count_as_cut_short() -> None:
    """Three short answers have ended and two long ones run: the mean is not that of the short ones."""
    assert mean_length(Remaining("B1", "short", 5, (900.0, 800.0), lengths(100, 100, 100))) == pytest.approx(2000 / 3)
    assert mean_length(Remaining("B1", "short", 5, (900.0, 800.0), lengths(100, 100, 100), 256)) == 256


@given(st.integers(1, 100_000), st.one_of(st.none(), st.floats(0.01, 1000)), st.floats(1, 600))
def test_time_limit_leaves_room_for_the_whole_budget(budget: int, speed: float | None, floor: float) -> None:
    limit = time_limit(budget, speed, floor)
    assert limit >= floor
    if speed is not None:
        assert limit >= 2 * budget / speed


async def test_the_speed_is_a_mean_and_the_interval_shows_its_spread(tmp_path: Path) -> None:
    """A server on a shared machine is fast in one moment and slow in the next; the estimate must not jump with it."""
    partition = Partition("short", 10, 64)
    settings = Settings(("http://x",), (), (partition,), tmp_path)
    sampling = settings.sampling(partition, None)
    prompts = {f"B1/{at}/x": Prompt(f"B1/{at}/x", "B1", "short", sampling, "", tmp_path, 0) for at in range(200)}

    def after(*speeds: float) -> Eta:
        board = Board(settings, prompts)
        for at, prompt in enumerate(prompts.values()):
            if at < 20:
                board.answered_before(prompt, "stop", 50, 5.0)
            elif at < 30:
                board.depart(prompt, asyncio.timeout(None))
        for speed in speeds:
            board.loaded(Load(10, speed))
        found = board.eta()
        assert found is not None
        return found

    steady, moving = after(100, 100, 100, 100), after(160, 40, 160, 40)
    assert steady.seconds == pytest.approx(180 * 50 / 100, rel=0.01)
    assert moving.seconds == pytest.approx(steady.seconds, rel=0.01)
    assert moving.high / moving.low > 1.5 * steady.high / steady.low
    assert after(100, 100, 100, 50).seconds < 1.2 * steady.seconds


def simulate(seed: int, shares: tuple[float, ...]) -> list[float]:
    """Run 4,000 prompts of four datasets with log-normal lengths through 50 slots after a pilot of 60 each.

    Returns the relative error of the predicted total at the given shares of the time.
    """
    draw = random.Random(seed)
    medians = {"B1": 60, "B2": 300, "B3": 900, "B4": 2500}
    prompts = [
        (name, min(10_240, max(1, round(draw.lognormvariate(math.log(median), 0.8)))))
        for name, median in medians.items()
        for _ in range(1000)
    ]
    draw.shuffle(prompts)
    by_name = {name: [one for one in prompts if one[0] == name] for name in medians}
    pilot = [one for name in medians for one in by_name[name][:60]]
    queue = pilot + [one for name in medians for one in by_name[name][60:]]
    slots, speed, now = 50, 5.0, 0.0
    starts: list[tuple[float, float, str, int]] = []  # (end, start, dataset, length)
    states: list[tuple[float, Eta | None]] = []
    done = {name: Lengths() for name in medians}
    waiting = dict.fromkeys(medians, 1000)
    position = 0
    while position < len(queue) or starts:
        while len(starts) < slots and position < len(queue):
            name, length = queue[position]
            heapq.heappush(starts, (now + length / speed, now, name, length))
            waiting[name] -= 1
            position += 1
        now, _, name, length = heapq.heappop(starts)
        done[name].add(length)
        if sum(one.count for one in done.values()) % 10 == 0:
            state = [
                Remaining(
                    each,
                    "short",
                    waiting[each],
                    tuple((now - start) * speed for _, start, other, _ in starts if other == each),
                    Lengths(done[each].count, done[each].total, done[each].squares),
                    10_240,
                )
                for each in medians
            ]
            states.append((now, estimate(state, [Speed("short", slots, speed)])))
    errors = []
    for share in shares:
        at, eta = next((at, eta) for at, eta in states if at >= share * now)
        assert eta is not None, f"no estimate at {share}"
        errors.append((at + eta.seconds) / now - 1)
    return errors


def test_the_method_holds_in_simulated_runs() -> None:
    runs = [simulate(seed, (0.1, 0.25, 0.5)) for seed in range(8)]
    for place, allowed in enumerate((0.25, 0.15, 0.10)):
        errors = [abs(run[place]) for run in runs]
        assert max(errors) < allowed, errors
    assert sum(abs(run[0]) for run in runs) / len(runs) < 0.12
