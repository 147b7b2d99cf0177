"""Who is asked alone, and when."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.answers import ABORTED
from pipeline.generate.judge import REASONS, Policy, blame, decide
from pipeline.generate.poison import Crashes, Turns


def test_crashes_are_counted_by_prompt() -> None:
    crashes = Crashes(2)
    assert crashes.under("a") == 1 and not crashes.suspicious("a")
    assert crashes.under("a") == 2 and crashes.suspicious("a")
    assert not crashes.suspicious("b")
    crashes.forget("a")
    assert not crashes.suspicious("a")


@settings(max_examples=50)
@given(
    crashed=st.sets(st.integers(0, 19), max_size=8),
    lasts=st.lists(st.integers(0, 5), min_size=20, max_size=20),
)
def test_nothing_is_asked_together_with_a_suspect(crashed: set[int], lasts: list[int]) -> None:
    """Whoever became a suspect in its first turn has its next one alone; and everybody has a turn."""
    turns = Turns()
    flying: dict[str, bool] = {}
    done: list[str] = []

    async def turn(key: str, number: int) -> bool:
        async with turns.take(key) as alone:
            assert alone == (key in turns.suspects)
            assert not any(flying.values()), "somebody is asked alone"
            assert not (alone and flying), "others are asked"
            flying[key] = alone
            for _ in range(lasts[number]):
                await asyncio.sleep(0)
            del flying[key]
            if number in crashed and not alone:
                turns.suspect(key)
                return False
        return True

    async def ask(number: int) -> None:
        key = str(number)
        while not await turn(key, number):
            pass
        turns.clear(key)
        done.append(key)

    async def everything() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for number in range(len(lasts)):
                group.create_task(ask(number))

    asyncio.run(everything())
    assert len(done) == 20 and not turns.suspects and not turns.asked_alone


@given(
    faults=st.sets(st.sampled_from(REASONS)).map(tuple),
    retry=st.sets(st.sampled_from(REASONS)),
    aside=st.sets(st.sampled_from(REASONS)),
    retries=st.integers(0, 4),
    greedy=st.booleans(),
)
def test_any_answer_is_kept_or_set_aside_in_the_end(
    faults: tuple[str, ...], retry: set[str], aside: set[str], retries: int, greedy: bool
) -> None:
    policy = Policy(tuple(retry), tuple(aside), retries)  # type: ignore[arg-type]
    decisions = [decide(faults, samples, policy, greedy=greedy) for samples in range(1, retries + 2)]
    last = decisions[-1]
    assert last != "retry"
    assert (last == "keep") == (not set(faults) & (retry | aside))
    if "retry" in decisions:
        assert decisions == ["retry"] * retries + ["set aside"]
        assert not greedy or ABORTED in faults
    if last == "set aside":
        assert all(fault in blame(faults, 1, policy) for fault in set(faults) & (retry | aside))
