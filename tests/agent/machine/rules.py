"""All steps of a walk: everything that can happen to jobs and agent, much of it with a SIGKILL in the middle.

Each step is done to a real agent and to ``model``; then ``comparison`` waits until the one is where the other is.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.agent.machine.harm import Harm
from tests.agent.machine.operators import Operators


class AgentMachine(Operators, Harm):
    """Operators ask, and jobs are harmed."""

    def otherwise(self, chance: Random) -> None:
        steps: list[Callable[..., None]] = [self.ask_to_start if self.jobs else self.change_plan]
        if self.running():
            steps = [self.end, self.grow, self.kill_part, self.ask_to_stop]
        chance.choice(steps)(seed=chance.getrandbits(32))
