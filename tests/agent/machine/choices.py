"""How a step makes its choices.

Hypothesis chooses the steps; what they do depends on where the walk is, and so on who won a race. Therefore each step
makes its choices from one random seed: what Hypothesis draws is the same whenever it goes the same way again.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.agent.machine.walk import Walk
from tests.agent.machine.world import CALM, VICTIMS, Strike

seeds = st.integers(0, (1 << 32) - 1)


def by_chance(step: Callable[[Any, Random], None]) -> Callable[..., Any]:
    """A rule that makes its choices from a seed, and others each time it is taken with the same one."""

    def taken(self: Walk, seed: int) -> None:
        self.lane.go_on()
        step(self, Random(f"{seed} {len(self.story)}"))

    taken.__name__ = step.__name__
    return rule(seed=seeds)(taken)


def any_client(chance: Random) -> str:
    return chance.choice(("alice", "bob"))


def any_strike(chance: Random) -> Strike:
    """About one in six strikes."""
    victim = chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
    return Strike(victim, chance.choice((0, 1, 3, 10, 30, 100))) if chance.random() < 0.16 else CALM
