"""What may be wrong with an answer, told from its token ids: the one definition for all who ask or choose."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Final

EMPTY: Final = "empty"
ABORTED: Final = "aborted"
REPETITIVE: Final = "repetitive"
TRUNCATED: Final = "truncated"
UNENDED: Final = "thinking not ended"

LOOP_TOKENS: Final = 64  # a loop must be at least so long
LOOP_SHARE: Final = 0.5  # and at least this share of the answer
LOOP_TIMES: Final = 3  # and its period must come at least so often: a draft that the answer repeats comes twice
_ANCHOR: Final = 8  # tokens
_WIDTH: Final = array("q").itemsize


def faults(
    output_ids: Sequence[int], finish: str, ends: Collection[int], thinking_end: int | None = None
) -> Iterator[str]:
    """All that is wrong with an answer, the weightiest first.

    ``ends`` are ids that say nothing at its end. ``thinking_end`` is the id that ends the thinking, where there has to
    be one: what comes after it is the content.
    """
    if finish not in ("stop", "length"):
        yield ABORTED
    end = len(output_ids)
    while end and output_ids[end - 1] in ends:
        end -= 1
    if not end or output_ids[end - 1] == thinking_end:
        yield EMPTY
    elif repetitive(output_ids[:end]):
        yield REPETITIVE
    if thinking_end is not None and thinking_end not in output_ids:
        yield UNENDED
    if finish == "length":
        yield TRUNCATED


def repetitive(output_ids: Sequence[int]) -> bool:
    """Whether the answer ends in an exact loop, of any period, that makes up at least half of it.

    Rows of a table or items of a list that differ in a single token are no loop.
    """
    least = max(LOOP_TOKENS, int(len(output_ids) * LOOP_SHARE)) * _WIDTH
    ids = array("q", output_ids).tobytes()
    anchor = ids[-_ANCHOR * _WIDTH :]
    # A loop has the last tokens of the answer once more a period earlier: only such places are looked at.
    at = len(ids) - len(anchor)
    while (at := ids.rfind(anchor, 0, at + len(anchor) - 1)) >= 0:
        period = len(ids) - len(anchor) - at
        loop = max(least, period * LOOP_TIMES)
        if loop > len(ids):
            break
        if period % _WIDTH == 0 and ids.startswith(ids[len(ids) - loop + period :], len(ids) - loop):
            return True
    return False
