"""The count of rows: what the draw left aside is never anything else."""

from __future__ import annotations

from pipeline.prep.tally import NOT_SAMPLED, OTHER, REASONS, Tally


def test_what_is_not_sampled_keeps_its_name_after_many_reasons() -> None:
    tally = Tally()
    for number in range(REASONS):
        tally.drop(f"reason {number}")
    tally.drop(NOT_SAMPLED)
    tally.drop("one more")
    assert (tally.dropped[NOT_SAMPLED], tally.dropped[OTHER]) == (1, 1)
    assert tally.usable == 1
