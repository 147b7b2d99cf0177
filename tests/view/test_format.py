"""Figures as an operator reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.view import format as fmt
from pipeline.protocol import Eta

HOUR = 3600.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (2.34e9, "2.3 GB"),
        (690e9, "690 GB"),
        (999.9e9, "1.0 TB"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_size(value: float | None, shown: str) -> None:
    assert fmt.size(value) == shown


def test_size_of_takes_the_unit_of_the_limit() -> None:
    assert fmt.size_of(812e9, 960e9) == "812 / 960 GB"
    assert fmt.size_of(900e6, 12e9) == "0.9 / 12 GB"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (245, "4 m 05 s"),
        (31 * HOUR + 720, "31 h 12 m"),
        (5 * 24 * HOUR + 3 * HOUR, "5 d 3 h"),
        (-5, "0 s"),
        (math.inf, "–"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert fmt.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Eta(29 * HOUR, 24 * HOUR, 36 * HOUR), "29 h (24–36)"),
        (Eta(12 * 60, 10 * 60, 15 * 60), "12 m (10–15)"),
        (Eta(40, 30, 55), "40 s (30–55)"),
        (Eta(5.5 * HOUR, 5 * HOUR, 6 * HOUR), "5.5 h (5.0–6.0)"),
        (Eta(60, 60, 60), "60 s"),
        (Eta(math.nan, 1, 2), "–"),
        (None, "–"),
    ],
)
def test_eta(value: Eta | None, shown: str) -> None:
    assert fmt.eta(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(2800, "2,800"), (9999, "9,999"), (88_088, "88.1k"), (5_000_000, "5.0M"), (None, "–")]
)
def test_short_count(value: float | None, shown: str) -> None:
    assert fmt.short_count(value) == shown


def test_nearly_done_is_not_a_hundred_per_cent() -> None:
    assert fmt.percent(0.9999) == "99 %"
    assert fmt.percent(1.0) == "100 %"
    assert fmt.percent(0.0001) == "<1 %"
    assert fmt.percent(0.0) == "0 %"


def test_bar() -> None:
    assert fmt.bar(0.5, 4) == "██░░"
    assert fmt.bar(None, 3) == "░░░"
    assert fmt.bar(0.0, 3) == "░░░"
    assert len(fmt.bar(0.333, 7)) == 7


@given(st.floats() | st.none(), st.integers(-2, 30))
def test_nothing_raises(value: float | None, width: int) -> None:
    for function in (
        fmt.size,
        fmt.count,
        fmt.short_count,
        fmt.number,
        fmt.percent,
        fmt.duration,
        fmt.short_duration,
        fmt.age,
    ):
        assert function(value)
    assert fmt.size_of(value, value)
    assert len(fmt.bar(value, width)) == max(0, width)
    if value is not None:
        assert fmt.eta(Eta(value, value, value))
        assert fmt.short_eta(Eta(value, value, value))


@given(st.floats(0, 99 * 86400.0))
def test_short_durations_fit_a_narrow_column(seconds: float) -> None:
    assert len(fmt.short_duration(seconds)) <= 5
