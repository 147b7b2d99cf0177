"""What becomes of an answer with something wrong about it: kept, asked for again, or set aside. Pure functions."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pipeline.answers import ABORTED, EMPTY, REPETITIVE, TRUNCATED, UNENDED

REASONS: Final = (TRUNCATED, ABORTED, EMPTY, REPETITIVE, UNENDED)

Reason = Literal["truncated", "aborted", "empty", "repetitive", "thinking not ended"]
Decision = Literal["keep", "retry", "set aside"]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done about each reason. What is in neither list is kept, and counted.

    ``retry`` asks for another sample, ``retries`` times for one prompt; after that the prompt is set aside.
    """

    retry: tuple[Reason, ...] = (ABORTED, EMPTY)
    set_aside: tuple[Reason, ...] = ()
    retries: int = 2
    thinking_end: int | None = None  # id of </think>; None: answers are not expected to think


def decide(faults: tuple[str, ...], samples: int, policy: Policy, *, greedy: bool = False) -> Decision:
    """``samples`` answers were drawn for the prompt, this one included; ``greedy`` ones are all alike."""
    if any(fault in policy.set_aside for fault in faults):
        return "set aside"
    again = [fault for fault in faults if fault in policy.retry]
    if not again:
        return "keep"
    alike = greedy and ABORTED not in again
    return "set aside" if alike or samples > policy.retries else "retry"


def blame(faults: tuple[str, ...], samples: int, policy: Policy) -> str:
    """Why an answer was set aside, in words."""
    named = ", ".join(fault for fault in faults if fault in (*policy.set_aside, *policy.retry))
    return f"answer {named}" if samples == 1 else f"answer {named}, {samples} samples"
