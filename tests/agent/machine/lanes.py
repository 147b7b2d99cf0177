"""Walks side by side: most of a walk is waiting. Each lane is a process with an agent of its own."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.agent.machine.world import World

LANES: Final = 3

SETTINGS: Final = settings(
    max_examples=10_000,  # a lane ends when it has taken its steps
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


class Over(BaseException):
    """No more walks: enough steps were taken, or something is wrong. For Hypothesis this is no failed example."""


@dataclass(frozen=True)
class Order:
    """What one lane is to do."""

    seed: str
    steps: int
    length: int  # of a walk, in steps


class Lane:
    """The walks of this process, one after the other, and their world."""

    def __init__(self, order: Order, given_up: Event) -> None:
        self.order = order
        self.wrong = ""
        self.steps = 0
        self.done: Counter[str] = Counter()
        """How many steps of each kind, and how many with each victim."""
        self._given_up = given_up
        self._walks = itertools.count(1)

    def run(self, machine: type[Machine]) -> None:
        """Take the walks; what went wrong is in ``wrong``, and then the other lanes give up too."""
        machine.lane = self
        seed(self.order.seed)(machine)
        how = settings(SETTINGS, stateful_step_count=self.order.length)
        with asyncio.Runner() as self._runner:
            self.world = World(Path(tempfile.mkdtemp(prefix="machine-")))
            try:
                self._runner.run(self.world.open())
                run_state_machine_as_test(machine, settings=how)
            except (Over, Exception) as error:
                if not (self.given_up or self._enough):  # else Hypothesis may say that a walk ended early
                    self._fail(error)
            finally:
                self._runner.run(self.world.close())
                shutil.rmtree(self.world.folder)

    def begin(self) -> int:
        """Begin a walk; its number."""
        if self._enough:
            raise Over
        return next(self._walks)

    def go_on(self) -> None:
        """Raise ``Over`` if a lane has found something wrong."""
        if self.given_up:
            raise Over

    @property
    def given_up(self) -> bool:
        return self._given_up.is_set()

    @property
    def _enough(self) -> bool:
        return self.steps >= self.order.steps

    def take(self, step: Coroutine[Any, Any, None], story: list[str]) -> None:
        """Take a step. What goes wrong is told with the whole story, and nothing made shorter: a try takes seconds."""
        try:
            self._runner.run(step)
        except Exception as error:
            log = self.world.rig.log().splitlines()[-30:]
            error.add_note("\n".join(["What was done:", *story, "The agent's log ends with:", *log]))
            self._fail(error)
            raise Over from error

    def _fail(self, error: BaseException) -> None:
        self.wrong = "".join(traceback.format_exception(error))
        self._given_up.set()


class Machine(RuleBasedStateMachine):
    """A state machine that is taken in a lane."""

    lane: Lane


def take_walks(machine: type[Machine], number: str, *, steps: int, length: int) -> Counter[str]:
    """Take so many steps, in walks of ``length`` that the seed ``number`` chooses; how many there were of each kind."""
    spawn = multiprocessing.get_context("spawn")
    orders = [Order(f"{number} {at}", -(-steps // LANES), length) for at in range(LANES)]
    with spawn.Manager() as manager, ProcessPoolExecutor(LANES, spawn) as pool:
        given_up = manager.Event()
        try:
            lanes = list(pool.map(_run, [machine] * LANES, orders, [given_up] * LANES))
        finally:
            given_up.set()
    wrong = [lane for lane, _, _ in lanes if lane]
    assert not wrong, "\n".join(wrong)
    assert sum(count for _, count, _ in lanes) >= steps
    return sum((done for _, _, done in lanes), Counter())


def _run(machine: type[Machine], order: Order, given_up: Event) -> tuple[str, int, Counter[str]]:
    lane = Lane(order, given_up)
    lane.run(machine)
    return lane.wrong, lane.steps, lane.done
