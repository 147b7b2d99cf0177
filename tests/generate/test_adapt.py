"""Slots that follow a server's load: bounds, directions, and where a model server ends up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.generate.adapt import Slots, follow, within
from pipeline.generate.engine import pressure_of
from pipeline.generate.outcome import Load
from tests.serve.real import metrics

LOADS = st.builds(
    Load,
    running=st.integers(0, 5000),
    tok_s=st.floats(0, 1e6),
    queued=st.integers(0, 5000),
    kv_use=st.none() | st.floats(0, 1),
    retracted=st.none() | st.integers(0, 1000),
)


@given(st.integers(1, 300), st.integers(1, 300), st.lists(LOADS, max_size=60))
def test_it_stays_between_its_bounds(least: int, most: int, loads: list[Load]) -> None:
    slots = within(Slots(most, least, most), least, most)
    for load in loads:
        before, slots = slots, follow(slots, load)
        assert min(least, most) <= slots.now <= most
        if slots.now > before.now:
            assert not load.queued
            assert (load.kv_use or 0.0) < 0.95
        if slots.now < before.now:
            assert not before.rest, "what runs has to end before it goes down again"


@given(st.integers(8, 400), st.integers(1, 400))
def test_it_finds_what_a_server_holds(holds: int, start: int) -> None:
    """A server that queues what it cannot hold: within a few minutes little is queued and most of it is used."""
    slots = Slots(start, 4, 400)
    seen = []
    for _ in range(300):
        slots = follow(slots, Load(min(slots.now, holds), 1.0, queued=max(0, slots.now - holds)))
        seen.append(slots.now)
    late = seen[-60:]
    assert max(late) <= holds * 1.1 + 6
    assert min(late) >= min(holds, 400) * 0.7 - 2


def test_a_retraction_or_a_full_cache_takes_a_quarter_and_then_waits() -> None:
    slots = follow(Slots(100, 10, 200), Load(100, 1.0, kv_use=0.5, retracted=3))
    assert slots.now == 104, "retractions of before are not its own"
    slots = follow(slots, Load(104, 1.0, kv_use=0.5, retracted=4))
    assert slots.now == 78
    assert follow(slots, Load(104, 1.0, kv_use=0.99)).now == 78
    assert follow(Slots(100, 10, 200), Load(100, 1.0, kv_use=0.99)).now == 75
    assert follow(Slots(12, 10, 200), Load(12, 1.0, queued=50)).now == 10


def test_slots_that_are_not_used_do_not_grow() -> None:
    assert follow(Slots(100, 10, 200), Load(50, 1.0)).now == 100


def test_what_a_real_server_says_of_its_load() -> None:
    queued, kv_use, retracted = pressure_of(metrics("busy"))
    assert queued == 0
    assert kv_use is not None and 0 <= kv_use < 1
    assert retracted in (None, 0)
    assert pressure_of("") == (0, None, None)
    assert pressure_of('sglang:num_queue_reqs{tp_rank="0"} 7.0\nsglang:token_usage NaN\n') == (7, None, None)
