from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.prep.sample import Draw, lot


def drawn(rows: int, take: int, seed: int) -> list[int]:
    draw: Draw[int] = Draw(take, seed)
    for position in range(rows):
        if draw.wants(position):
            draw.offer(position, str(position), position)
    return draw.drawn()[:take]


@given(rows=st.integers(0, 400), take=st.integers(1, 50), seed=st.integers(0, 5))
def test_the_lowest_lots_are_drawn(rows: int, take: int, seed: int) -> None:
    assert drawn(rows, take, seed) == sorted(range(rows), key=lambda position: lot(seed, position))[:take]


def test_every_row_has_the_same_chance() -> None:
    times = Counter(position for seed in range(400) for position in drawn(200, 20, seed))
    assert len(times) == 200
    assert min(times.values()) > 15 and max(times.values()) < 75  # 40 expected, 6 the standard deviation


def test_memory_is_bounded_by_what_is_taken() -> None:
    draw: Draw[int] = Draw(100, 0)
    offered = 0
    for position in range(100_000):
        if draw.wants(position):
            draw.offer(position, str(position), position)
            offered += 1
        assert len(draw) <= 125
    assert offered < 1500, "most rows are never looked at"


def test_content_that_is_held_is_known_and_forgotten_when_it_goes() -> None:
    draw: Draw[str] = Draw(1, 0)
    evicted = [draw.offer(position, f"c{position}", "x") for position in range(40)]
    assert evicted.count(True) == 40 - 17
    assert sum(draw.holds(f"c{position}") for position in range(40)) == 17
