from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from pipeline.dedup.decide import Double, Rows, doubles
from pipeline.dedup.minhash import shingles, signature
from pipeline.dedup.rows import Message, Record, digests

WORDS = [f"w{number}" for number in range(200)]


def talk(*texts: str) -> list[Message]:
    return [Message(("user", "assistant")[number % 2], text) for number, text in enumerate(texts)]


def rows_of(*rows: tuple[list[Message], bool]) -> Rows:
    """Rows of (messages, held out); those that end with an answer are samples."""
    records = [Record("T", str(at), "h", "g", heldout, messages) for at, (messages, heldout) in enumerate(rows)]
    made = Rows(np.stack([signature(shingles(record.said(), 5)) for record in records]))
    for record in records:
        made.keys.append(record.key)
        made.heldout.append(record.heldout)
        made.samples.append(record.messages[-1].role == "assistant")
        made.digests.append(digests(record))
    return made


def found(*rows: tuple[list[Message], bool]) -> list[tuple[int, int, str]]:
    return [(each.row, each.of, each.reason) for each in doubles(rows_of(*rows), 0.8)]


LONG = " ".join(WORDS)
ALIKE = " ".join(["another", *WORDS[3:]])
OTHER = " ".join(reversed(WORDS))


def test_the_first_stays_and_the_others_name_it() -> None:
    assert found((talk("Hello you"), False), (talk(OTHER), False), (talk("Hello  you "), False)) == [
        (2, 0, "duplicate")
    ]
    assert found((talk(LONG), False), (talk(OTHER), False), (talk(ALIKE), False)) == [(2, 0, "near duplicate")]


def test_a_prompt_that_a_sample_answers_is_a_duplicate_wherever_in_the_talk() -> None:
    sample = talk("What is 1?", "It is 1.", "And 2?", "It is 2.")
    for prompt in (sample[:1], sample[:3]):
        assert found((sample, False), (prompt, False)) == [(1, 0, "duplicate")]
        assert found((sample, False), (prompt, True)) == [(0, 1, "duplicate of a held-out row")]
    assert found((sample, False), (talk("What is 1?", "Another answer.", "And 2?"), False))[0][2] == "near duplicate"


def test_the_same_words_with_other_tools_are_another_prompt() -> None:
    def names(tools: bytes, calls: bytes = b"") -> tuple[bytes, tuple[bytes, ...]]:
        messages = [Message("user", "Hi"), Message("assistant", "", Raw(calls)), Message("user", "And?")]
        found = digests(Record("T", "1", "h", "g", False, messages, tools=Raw(tools)))
        return found.whole, found.prompts

    assert len({names(b""), names(b"[1]"), names(b"", b"[2]")}) == 3
    assert names(b"")[1] == names(b"", b"[2]")[1], "the turn that calls comes after the prompt"


def test_two_answers_to_other_prompts_are_two_samples() -> None:
    assert not found(
        (talk("What is 1?", "It is 1.", LONG, "Yes."), False), (talk("What is 1?", "1", OTHER, "No."), False)
    )


def test_of_two_on_both_sides_of_the_split_the_training_side_goes() -> None:
    assert found((talk(LONG), False), (talk(ALIKE), True)) == [(0, 1, "near duplicate of a held-out row")]
    assert found((talk(LONG), True), (talk(ALIKE), True)) == [(1, 0, "near duplicate")]
    assert found((talk("Hi"), False), (talk("Hi"), True)) == [(0, 1, "duplicate of a held-out row")]


def test_a_chain_does_not_vanish_as_a_whole() -> None:
    """Each text is like its neighbours; far ones are not alike."""
    chain = [
        (talk(" ".join(f"w{number}" for number in range(start, start + 200))), False) for start in range(0, 200, 8)
    ]
    gone = {row for row, _, _ in found(*chain)}
    kept = [at for at in range(len(chain)) if at not in gone]
    assert kept[0] == 0 and 5 < len(kept) < len(chain) / 1.5
    assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(kept))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=25))
def test_what_stays_is_not_alike_and_what_goes_is_like_one_that_stays(made: list[tuple[int, int, bool]]) -> None:
    """Topics that share nothing, each with variants that share almost all."""
    talks = [
        (talk(" ".join(f"t{topic}w{number}" for number in range(variant, 150 + variant))), heldout)
        for topic, variant, heldout in made
    ]
    if not talks:
        return
    result: list[Double] = list(doubles(rows_of(*talks), 0.8))
    gone = {double.row for double in result}
    kept = [at for at in range(len(made)) if at not in gone]
    assert sorted(made[at][0] for at in kept) == sorted({topic for topic, _, _ in made})
    for double in result:
        assert double.of in kept and made[double.of][0] == made[double.row][0]
        assert made[double.of][2] or not made[double.row][2], "a held-out row goes for held-out ones alone"
        assert made[double.of][2] > made[double.row][2] or double.of < double.row, "of one side, the first stays"
        assert ("held-out" in double.reason) == (made[double.of][2] and not made[double.row][2])
