"""How many requests a server is given at once, by what it says of itself: up in steps, down by a share (AIMD)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pipeline.generate.outcome import Load

STEP: Final = 4  # slots more after a look at which there was room
SHARE: Final = 0.75  # of the slots, after a look at which there was none
REST: Final = 6  # looks after a step down before the next one: what runs has to end first
FULL_KV: Final = 0.95
ROOMY_KV: Final = 0.85
BUSY: Final = 0.9  # of the slots in use: below it more of them would change nothing


@dataclass(frozen=True)
class Slots:
    """``now`` stays between ``least`` and ``most``."""

    now: int
    least: int
    most: int
    rest: int = 0  # looks until it may go down again
    retracted: int | None = None  # the server's count at the last look


def within(slots: Slots, least: int, most: int) -> Slots:
    """The same with other bounds: ``most`` wins where they cross."""
    least = min(least, most)
    return replace(slots, now=max(least, min(slots.now, most)), least=least, most=most)


def follow(slots: Slots, load: Load) -> Slots:
    """The slots after one more look at the server.

    A queue, a full KV cache, and requests thrown out of it (retractions) say that it holds too many.
    """
    known, counted = slots.retracted, load.retracted
    thrown = known is not None and counted is not None and counted > known
    seen = replace(slots, rest=max(0, slots.rest - 1), retracted=known if counted is None else counted)
    kv_use = load.kv_use if load.kv_use is not None else 0.0
    if thrown or load.queued > max(1, load.running // 10) or kv_use > FULL_KV:
        if slots.rest:
            return seen
        return replace(seen, now=max(slots.least, int(slots.now * SHARE)), rest=REST)
    if not load.queued and kv_use < ROOMY_KV and load.running >= BUSY * slots.now:
        return replace(seen, now=min(slots.most, slots.now + STEP))
    return seen
