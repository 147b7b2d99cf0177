"""The set of content hashes against Python's own."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.prep.seen import FIRST, Seen


@given(st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 40), max_size=200))
def test_it_answers_as_a_set_does(numbers: list[int]) -> None:
    seen, known = Seen(), set[int]()
    for number in numbers:
        assert seen.add(f"{number:016x}") == (number not in known)
        known.add(number)
    assert len(seen) == len(known)


def test_it_grows() -> None:
    draw = random.Random(0)
    hashes = [f"{draw.getrandbits(64):016x}" for _ in range(5 * FIRST)]
    seen = Seen()
    assert all(seen.add(content) for content in hashes)
    assert not any(seen.add(content) for content in hashes)
    assert len(seen) == 5 * FIRST
