"""The agent walks where its model walks: 200 steps always, 2,000 in ``make test-long``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.agent.machine.rules import STARTS, STOPS, AgentMachine
from tests.agent.machine.walk import Walk
from tests.agent.machine.world import VICTIMS

# A failing walk is told step by step and not made shorter: each try takes a real agent many seconds.
WALKS = settings(
    deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck), print_blob=True
)

STEPS = (
    "plan",
    "remove and add",
    "repeat",
    "burst",
    "end",
    "end unseen",
    "grow",
    "kill part",
    "kill newborn",
    "start late",
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[AgentMachine]]:
    """The machine, with a loop to run on; its agent is gone afterwards."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    with asyncio.Runner() as runner:
        AgentMachine.runner = runner
        AgentMachine.done.clear()
        Walk.steps = 0
        yield AgentMachine
        AgentMachine.close_world()


@pytest.mark.timeout(900)
def test_two_hundred_steps(machine: type[AgentMachine]) -> None:
    """The same ones each time."""
    walk(machine, settings(WALKS, max_examples=12, stateful_step_count=20, derandomize=True), 200)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_thousand_steps(machine: type[AgentMachine]) -> None:
    """Others each time; ``--hypothesis-seed=N`` takes those of a run that failed."""
    walk(machine, settings(WALKS, max_examples=45, stateful_step_count=50), 2000)
    assert machine.done.keys() >= {*STARTS, *STOPS, *VICTIMS, *STEPS}


def walk(machine: type[AgentMachine], how: settings, steps: int) -> None:
    run_state_machine_as_test(machine, settings=how)
    assert machine.steps >= steps
