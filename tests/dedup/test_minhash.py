from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.dedup.minhash import PLACES, band_width, buckets, shingles, signature, similarity


def words(first: int, last: int) -> str:
    return " ".join(f"word{number}" for number in range(first, last))


def test_shingles_are_runs_of_words_whatever_their_case_and_marks() -> None:
    text = "What is the sum, of three and four?"
    assert len(shingles(text, 5)) == 4
    assert (shingles(text, 5) == shingles("what is THE sum of\nthree and four", 5)).all()
    assert len(shingles("two words", 5)) == len(shingles("?!", 5)) == len(shingles("", 5)) == 1
    assert shingles("two words", 5) != shingles("two other", 5)
    assert shingles("?!", 5) != shingles("!!", 5)
    assert len(shingles("你好世界", 2)) == 3, "a script without spaces has a word a character"


@pytest.mark.parametrize(
    ("one", "other"),
    [("What is 3 + 4?", "What is 3 * 4?"), ("a==b", "a!=b"), ("is x < y or not", "is x > y or not"), ("-1", "1")],
)
def test_prompts_that_differ_in_an_operator_are_not_the_same(one: str, other: str) -> None:
    assert similarity(signature(shingles(one, 5)), signature(shingles(other, 5))[None])[0] < 0.5


@pytest.mark.parametrize("shared", [0, 100, 250, 400, 450, 500])
def test_the_estimate_is_near_the_similarity_of_the_sets(shared: int) -> None:
    one, other = shingles(words(0, 500), 1), shingles(words(500 - shared, 1000 - shared), 1)
    truth = len(np.intersect1d(one, other)) / len(np.union1d(one, other))
    estimate = float(similarity(signature(one), signature(other)[None])[0])
    assert estimate == pytest.approx(truth, abs=0.12)
    assert shared < 500 or estimate == 1.0


@given(st.lists(st.text(max_size=30), min_size=1, max_size=20))
def test_any_text_has_a_signature_that_does_not_depend_on_order_or_repetition(parts: list[str]) -> None:
    found = shingles(" ".join(parts), 3)
    assert (signature(found) == signature(np.concatenate([found[::-1], found]))).all()


def test_the_same_in_every_process() -> None:
    code = "from pipeline.dedup.minhash import *; print(signature(shingles('one two three four five six', 3)).tolist())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(signature(shingles("one two three four five six", 3)).tolist())


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9, 1.0])
def test_pairs_at_the_threshold_meet_in_a_band(threshold: float) -> None:
    width = band_width(threshold)
    assert 1 - (1 - threshold**width) ** (PLACES // width) >= 0.99


def test_buckets_hold_those_that_agree_in_a_band_and_nobody_alone() -> None:
    texts = [words(0, 200), words(1000, 1200), words(2, 202), words(3000, 3200)]
    found = buckets(np.stack([signature(shingles(text, 3)) for text in texts]), 0.8)
    assert found.shape == (4, PLACES // band_width(0.8))
    assert (found[[1, 3]] == -1).all()
    assert ((found[0] == found[2]) & (found[0] >= 0)).any()
    numbers = found[0][found[0] >= 0]
    assert len(set(numbers.tolist())) == len(numbers), "a number is of one band"
