"""Curves in characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.view.plot import blocks, braille, resample

values = st.lists(st.floats() | st.none(), max_size=60)


def test_a_ramp_rises() -> None:
    assert blocks([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert braille([0, 1, 2, 3, 4, 4], 3, 1) == ["⢀⣴⣿"]


def test_zero_is_empty_and_none_is_a_gap() -> None:
    assert braille([0, 0, 4, 4], 2, 1) == [" ⣿"]
    assert blocks([4, None, 4]) == "█ █"
    assert blocks([0, 0]) == "▁▁"


def test_rows_come_from_the_top() -> None:
    assert braille([8, 8, 4, 4], 2, 2) == ["⣿ ", "⣿⣿"]


def test_resampling_takes_the_mean_of_each_span_of_time() -> None:
    assert resample([0, 1, 2, 3], [2, 4, 6, 8], 2) == [3, 7]
    assert resample([], [], 3) == [None, None, None]
    assert resample([5], [7], 3)[-1] == 7


def test_few_points_leave_no_holes_but_a_long_silence_does() -> None:
    assert None not in resample([0, 1, 2], [1, 2, 3], 12)
    silent = resample([*range(50), 1000], [1.0] * 51, 100)
    assert None in silent


@given(values, st.integers(0, 20), st.integers(0, 5))
def test_the_drawing_has_the_asked_size(points: list[float | None], width: int, height: int) -> None:
    rows = braille(points, width, height)
    assert [len(row) for row in rows] == [width] * height
    assert len(blocks(points)) == len(points)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=40), st.integers(0, 50))
def test_resampling_never_raises(points: list[tuple[float, float]], columns: int) -> None:
    assert len(resample([t for t, _ in points], [v for _, v in points], columns)) == columns
