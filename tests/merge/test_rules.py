from __future__ import annotations

from pipeline.merge.rules import loss_mask, refusal
from pipeline.merge.vocabulary import VocabularyCount

END = 2


def test_what_is_refused() -> None:
    answer = list(range(10, 60))
    assert refusal([*answer, END], "stop", {END}) == ""
    assert refusal(answer, "length", {END}) == ""
    assert refusal(answer, "abort", {END}) == "aborted"
    assert refusal([], "stop", {END}) == refusal([END], "stop", {END}) == "empty"
    assert refusal([*answer, *[7, 8, 9] * 40, END], "length", {END}) == "repetitive"


def test_the_reasons_are_a_rule() -> None:
    answer = list(range(10, 60))
    assert refusal(answer, "length", {END}, ("truncated",)) == "truncated"
    assert refusal(answer, "abort", {END}, ("truncated",)) == ""
    assert refusal([7] * 100, "length", {END}, ("truncated", "repetitive")) == "repetitive"
    assert refusal([END], "stop", {END}, ()) == "" and refusal([], "stop", {END}, ()) == "empty"
    assert loss_mask(1, 2, "abort") == [0, 1, 0], "nobody knows what would have come next"


def test_a_cut_answer_has_no_loss_on_its_last_position() -> None:
    assert loss_mask(2, 3, "stop") == [0, 0, 1, 1, 1]
    assert loss_mask(2, 3, "length") == [0, 0, 1, 1, 0]
    assert loss_mask(2, 0, "length") == [0, 0]


def test_the_vocabulary_is_counted_where_there_is_loss() -> None:
    count = VocabularyCount()
    count.add([9, 9, 9, 4, 4, 3, 7], [0, 0, 0, 1, 1, 1, 1])
    chosen = count.chosen(2, 10)
    assert chosen["ids"] == [4, 3], "of equals, the lower id"
    assert chosen["coverage"] == 0.75 and chosen["tokens"] == 4
    filled = count.chosen(6, 10)
    assert filled["ids"] == [4, 3, 7, 0, 1, 2] and filled["filled"] == 3 and filled["coverage"] == 1.0
    assert count.chosen(100, 10)["size"] == 10
