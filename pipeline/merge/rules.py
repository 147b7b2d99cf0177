"""Which answers are worth training on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

PERIOD: Final = 64  # tokens; longer loops are not looked for
LOOP_TOKENS: Final = 64  # a loop must be at least so long
LOOP_SHARE: Final = 0.5  # and at least this share of the answer

EMPTY: Final = "empty"
ABORTED: Final = "aborted"
REPETITIVE: Final = "repetitive"
TRUNCATED: Final = "truncated"

REASONS: Final = (TRUNCATED, ABORTED, EMPTY, REPETITIVE)
DROPPED: Final = (ABORTED, EMPTY, REPETITIVE)
"""Dropped by default. Each token of a truncated answer is a valid target, and the long ones are those cut most."""


def refusal(output_ids: Sequence[int], finish: str, special: Collection[int], drop: Collection[str] = DROPPED) -> str:
    """Why an answer is not used; "" for one that is. ``drop`` are the reasons that count; no answer at all always."""
    reasons = (reason for reason in _reasons(output_ids, finish, special) if reason in drop)
    return next(reasons, "" if output_ids else EMPTY)


def _reasons(output_ids: Sequence[int], finish: str, special: Collection[int]) -> Iterator[str]:
    """All that is wrong with an answer, the weightiest first."""
    if finish not in ("stop", "length"):
        yield ABORTED
    end = len(output_ids)
    while end and output_ids[end - 1] in special:
        end -= 1
    if not end:
        yield EMPTY
    elif repetitive(output_ids[:end]):
        yield REPETITIVE
    if finish == "length":
        yield TRUNCATED


def repetitive(output_ids: Sequence[int]) -> bool:
    """Whether the answer ends in a loop that makes up at least half of it."""
    least = max(LOOP_TOKENS, int(len(output_ids) * LOOP_SHARE))
    if len(output_ids) < least:
        return False
    for period in range(1, min(PERIOD, least // 2) + 1):
        looped = period
        last = len(output_ids) - 1
        while looped <= last and output_ids[last - looped] == output_ids[last - looped + period]:
            looped += 1
        if looped >= least:
            return True
    return False


def loss_mask(prompt: int, answer: int, finish: str) -> list[int]:
    """1 on the answer's tokens. A cut answer has no loss on its last position: what comes after it is not known."""
    mask = [0] * prompt + [1] * answer
    if finish != "stop" and answer:
        mask[-1] = 0
    return mask
