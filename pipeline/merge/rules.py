"""Which answers are worth training on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pipeline.answers import ABORTED, EMPTY, REPETITIVE, TRUNCATED, faults

REASONS: Final = (TRUNCATED, ABORTED, EMPTY, REPETITIVE)
DROPPED: Final = (ABORTED, EMPTY, REPETITIVE)
"""Dropped by default. Each token of a truncated answer is a valid target, and the long ones are those cut most."""


def refusal(output_ids: Sequence[int], finish: str, special: Collection[int], drop: Collection[str] = DROPPED) -> str:
    """Why an answer is not used; "" for one that is. ``drop`` are the reasons that count; no answer at all always."""
    reasons = (reason for reason in faults(output_ids, finish, special) if reason in drop)
    return next(reasons, "" if output_ids else EMPTY)


def loss_mask(prompt: int, answer: int, finish: str) -> list[int]:
    """1 on the answer's tokens. A cut answer has no loss on its last position: what comes after it is not known."""
    mask = [0] * prompt + [1] * answer
    if finish != "stop" and answer:
        mask[-1] = 0
    return mask
