"""The agent walks where its model walks: 200 steps always, 2,000 in ``make test-long``."""

from __future__ import annotations

from random import randrange

import pytest

from tests.agent.machine.harm import DEEDS
from tests.agent.machine.lanes import take_walks
from tests.agent.machine.operators import CHANGES, STARTS, STOPS
from tests.agent.machine.rules import AgentMachine
from tests.agent.machine.world import VICTIMS


@pytest.fixture(autouse=True)
def plain_login_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")


@pytest.mark.timeout(900)
def test_two_hundred_steps() -> None:
    """The same ones each time."""
    take_walks(AgentMachine, "always", steps=200, length=20)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_thousand_steps(request: pytest.FixtureRequest) -> None:
    """Others each time; ``--hypothesis-seed=N`` takes those of a run that failed."""
    number = request.config.getoption("--hypothesis-seed") or str(randrange(1 << 32))
    try:
        done = take_walks(AgentMachine, number, steps=2000, length=50)
    except Exception as error:
        error.add_note(f"The same walks again: --hypothesis-seed={number}")
        raise
    assert done.keys() >= {*CHANGES, *STARTS, *STOPS, *DEEDS, *VICTIMS}
