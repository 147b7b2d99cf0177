from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.answers import faults, repetitive

END, THOUGHT = 2, 9


def found(ids: list[int], finish: str = "stop", thinking_end: int | None = None) -> tuple[str, ...]:
    return tuple(faults(ids, finish, {END}, thinking_end))


def test_what_is_wrong_with_an_answer() -> None:
    answer = list(range(10, 60))
    assert found([*answer, END]) == ()
    assert found(answer, "length") == ("truncated",)
    assert found([*answer, END], "abort") == ("aborted",)
    assert found([]) == found([END]) == found([END, END]) == ("empty",)
    assert found([], "abort") == ("aborted", "empty")
    assert found([7, 8, 9] * 40, "length") == ("repetitive", "truncated")


def test_thinking_that_does_not_end() -> None:
    answer = list(range(10, 60))
    assert found([*answer, THOUGHT, *answer, END], thinking_end=THOUGHT) == ()
    assert found([*answer, END], thinking_end=THOUGHT) == ("thinking not ended",)
    assert found(answer, "length", THOUGHT) == ("thinking not ended", "truncated")
    assert found([*answer, THOUGHT, END], thinking_end=THOUGHT) == ("empty",), "there is thinking, and nothing after it"
    assert found([*answer, END]) == (), "no such id is expected"


def test_loops() -> None:
    assert repetitive([5] * 64) and not repetitive([5] * 63)
    assert repetitive([*range(100, 130), *range(30), *[1, 2] * 50])
    assert not repetitive([*range(1000), *[1, 2] * 50]), "a short tail of a long answer"
    assert repetitive([number % 65 for number in range(500)])
    assert repetitive([*range(5000, 5800), *[number % 700 for number in range(2200)]]), (
        "a long paragraph, over and over"
    )
    draft = list(range(100, 400))
    assert not repetitive([*draft, THOUGHT, *draft]), "an answer that repeats its draft"
    assert repetitive([163_000] * 100), "ids of a large vocabulary"


@given(st.lists(st.integers(0, 40), max_size=300))
def test_a_loop_is_one(ids: list[int]) -> None:
    """Whatever is called a loop is one by the plainest definition, and the other way round."""

    def looped(period: int) -> bool:
        loop = max(64, len(ids) // 2, 3 * period)
        return len(ids) >= loop and ids[-loop:-period] == ids[-loop + period :]

    assert repetitive(ids) == any(looped(period) for period in range(1, len(ids) // 3 + 1))


@given(
    before=st.lists(st.integers(0, 100), max_size=60),
    period=st.lists(st.integers(0, 100), min_size=1, max_size=40),
    times=st.integers(3, 12),
    cut=st.integers(0, 39),
)
def test_a_loop_is_found_wherever_it_is_cut(before: list[int], period: list[int], times: int, cut: int) -> None:
    loop = [*period * times, *period[: cut % len(period)]]
    if len(loop) >= max(64, (len(before) + len(loop)) // 2):
        assert repetitive([*before, *loop])


ROW = st.lists(st.integers(1000, 1200), min_size=1, max_size=8)


@given(rows=st.lists(ROW, min_size=3, max_size=80), bars=st.lists(st.integers(3, 8), min_size=1, max_size=6))
def test_a_table_is_no_loop(rows: list[list[int]], bars: list[int]) -> None:
    """Rows between the same bars, each with its number: the most regular thing that is still an answer."""
    table = [token for number, row in enumerate(rows) for token in (*bars, 2000 + number, *bars, *row, *bars)]
    assert not repetitive(table)


@given(count=st.integers(3, 200), words=st.lists(st.integers(10, 400), min_size=1, max_size=12))
def test_a_list_is_no_loop(count: int, words: list[int]) -> None:
    """The same sentence in every item, behind the item's number in digits."""
    digits = [[500 + int(digit) for digit in str(number)] for number in range(1, count + 1)]
    assert not repetitive([token for one in digits for token in (*one, 600, *words, 601)])


@given(st.lists(st.integers(0, 163_839), max_size=200))
def test_any_ids_are_judged(ids: list[int]) -> None:
    assert set(found(ids, "length", THOUGHT)) <= {"empty", "repetitive", "thinking not ended", "truncated"}
