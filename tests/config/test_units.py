from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.config.units import LARGEST_SIZE, LONGEST, parse_duration, parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("92 GB", 92 * 10**9), ("61 GiB", 61 * 2**30), ("2.5GB", 2_500_000_000), ("0 B", 0), ("4 kb", 4000), (17, 17)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "92", "GB", "-1 GB", "1 GB 2 MB", "1e3 GB", "９ GB", "9" * 20 + " GB", -1, 2**61])
def test_what_is_no_size(text: str | int) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 m", 600.0),
        ("1 h 30 m", 5400.0),
        ("1h30m", 5400.0),
        ("250 ms", 0.25),
        ("2 d", 172800.0),
        (5, 5.0),
        (0.5, 0.5),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 m!", "1 hour", "-1 s", "20000 d", -1, float("nan"), float("inf")])
def test_what_is_no_duration(text: str | float) -> None:
    assert parse_duration(text) is None


@given(st.text())
def test_any_text_is_a_size_and_a_duration_or_neither(text: str) -> None:
    size, seconds = parse_size(text), parse_duration(text)
    assert size is None or 0 <= size <= LARGEST_SIZE
    assert seconds is None or 0 <= seconds <= LONGEST


@given(st.integers(0, 10**17))
def test_a_shown_size_is_near_the_size(size: int) -> None:
    shown = show_size(size)
    back = parse_size(shown)
    assert back is not None
    assert abs(back - size) <= max(0.06 * size, 1)
