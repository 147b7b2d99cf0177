"""What is said when the estimate moves: which cause is named, and that small moves are none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.generate.board import Board
from pipeline.generate.eta import Lengths, Remaining, Speed, estimate
from pipeline.generate.moves import CHECK_S, SHOWN_S, Moves, Point, piloted, point, what_changed
from pipeline.generate.outcome import Load
from pipeline.generate.prompts import Prompt
from pipeline.generate.settings import Partition, Settings

HOUR = 3600.0
FIVE = Speed("short", 150, 5.5)


def remaining(name: str, waiting: int, finished: int, mean: float, partition: str = "short") -> Remaining:
    return Remaining(name, partition, waiting, (), Lengths(finished, finished * mean, finished * mean * mean * 1.5))


def said(at: float, *rest: Remaining, speeds: tuple[Speed, ...] = (FIVE,), pilot: bool = False) -> Point:
    eta = estimate(rest, speeds)
    assert eta is not None
    return point(at, eta, rest, speeds, pilot=pilot)


PILOT = said(0, remaining("B1", 40_000, 100, 400), remaining("B7", 6_000, 100, 1000), pilot=True)


def test_a_dataset_whose_answers_are_longer_is_named() -> None:
    # 1,000 answers of 3,100 tokens after the 100 of the pilot; B1 as it was.
    longer = remaining("B7", 5_000, 1_100, (100 * 1000 + 1000 * 3100) / 1100)
    # That is as many tokens as 70 minutes make.
    now = said(4_240, remaining("B1", 39_000, 1_100, 400), longer)
    text = what_changed(PILOT, now)
    assert text.endswith(" later than said an hour ago: B7's answers are 3.1x longer than its pilot's")
    assert what_changed(replace(PILOT, pilot=False), now).endswith("B7's answers are 3.1x longer than an hour ago")


def test_a_dataset_whose_answers_are_shorter_is_named() -> None:
    shorter = remaining("B1", 39_000, 1_100, (100 * 400 + 1000 * 300) / 1100)
    text = what_changed(PILOT, said(600, shorter, remaining("B7", 6_000, 100, 1000)))
    assert " sooner than said 10 min ago: B1's answers are 25 % shorter than its pilot's" in text


def test_a_server_that_is_slower_is_named() -> None:
    # What an hour of 150 streams at 5.5 tokens/s answers is gone.
    rest = (remaining("B1", 40_000 - 7_425, 7_525, 400), remaining("B7", 6_000, 100, 1000))
    text = what_changed(PILOT, said(HOUR, *rest, speeds=(replace(FIVE, stream_tok_s=5.5 * 0.72),)))
    assert text.endswith(" later than said an hour ago: the server is 28 % slower than an hour ago")
    assert what_changed(PILOT, said(HOUR, *rest)) == ""


def test_with_two_partitions_the_slower_one_is_named() -> None:
    rest = (remaining("B1", 40_000, 100, 400), remaining("B8", 3_000, 100, 5_500, "long"))
    before = said(0, *rest, speeds=(FIVE, Speed("long", 32, 15.0)))
    text = what_changed(before, said(60, *rest, speeds=(FIVE, Speed("long", 32, 9.0))))
    assert text.endswith("the server is 40 % slower at long than 60 s ago")


def test_lost_time_is_named_where_nothing_else_changed() -> None:
    rest = (remaining("B1", 40_000, 100, 400), remaining("B7", 6_000, 100, 1000))
    text = what_changed(PILOT, said(4 * HOUR, *rest))
    assert text == "4 h later than said 4 h ago: 4 h went by with less answered than expected"


@given(st.floats(0.2, 5), st.floats(0.2, 5), st.floats(0, 100_000))
def test_it_speaks_when_the_end_moves_and_only_then(longer: float, faster: float, at: float) -> None:
    now = said(
        at,
        remaining("B1", 39_000, 1_100, 400 * longer),
        remaining("B7", 6_000, 100, 1000),
        speeds=(replace(FIVE, stream_tok_s=5.5 * faster),),
    )
    moved = now.end - PILOT.end
    out = abs(moved) > 0.1 * PILOT.eta.seconds or not PILOT.eta.low <= now.end <= PILOT.eta.high
    text = what_changed(PILOT, now)
    assert bool(text) == out
    if text:
        assert f"{'later' if moved > 0 else 'sooner'} than said" in text


def test_a_move_is_told_for_an_hour_and_then_is_what_later_ones_are_compared_with() -> None:
    moves = Moves()
    moves.hear(PILOT)
    rest = (remaining("B1", 40_000, 100, 400), remaining("B7", 6_000, 100, 1000))
    slow = (replace(FIVE, stream_tok_s=3.0),)
    moves.hear(said(1, *rest, speeds=slow))
    assert moves.text == ""  # not looked at yet
    moves.hear(said(CHECK_S, *rest, speeds=slow))
    assert "the server is 45 % slower" in moves.text
    told = moves.text
    moves.hear(said(2 * CHECK_S, *rest, speeds=slow))
    assert moves.text == told
    moves.hear(said(CHECK_S + SHOWN_S + CHECK_S, *rest, speeds=slow))
    assert moves.text == ""


@pytest.mark.parametrize(("waiting", "finished", "done"), [(10, 99, False), (10, 100, True), (0, 5, True)])
def test_the_pilot_is_over_when_every_dataset_has_its_answers(waiting: int, finished: int, done: bool) -> None:
    assert piloted([remaining("B1", 5, 100, 10), remaining("B7", waiting, finished, 10)], 100) is done


def test_the_board_tells_what_moved_its_estimate(tmp_path: Path) -> None:
    """Twenty answers a dataset are the pilot; after it the server falls to a third of its speed."""
    partition = Partition("short", 10, 64)
    settings = Settings(("http://x",), (), (partition,), tmp_path, pilot=20)
    sampling = settings.sampling(partition, None)
    prompts = {f"B1/{at}/x": Prompt(f"B1/{at}/x", "B1", "short", sampling, "", tmp_path, 0) for at in range(2000)}
    now = 0.0
    board = Board(settings, prompts, lambda: now)
    waiting = iter(prompts.values())
    flying: list[Prompt] = []
    for tok_s in [10.0] * 3 + [3.0] * 60:
        while len(flying) < 10:
            flying.append(next(waiting))
            board.depart(flying[-1], asyncio.Timeout(None))
        now += 50 / tok_s
        board.loaded(Load(10, 10 * tok_s))
        board.eta()
        for prompt in flying:
            board.land(prompt)
            board.finished(prompt, 50, 50 / tok_s)
            board.written(prompt, "stop", 50)
        flying.clear()
    assert "later than said" in board.moves.text
    assert "the server is 70 % slower than" in board.moves.text
