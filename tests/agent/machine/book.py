"""What the processes of one job write down of themselves, and the orders that its main process takes: ``puppet``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pipeline.agent.attempts.identity import Process, alive
from tests.agent.rig import until

PATIENCE_S: Final = 60.0
"""For anything, on a machine that is busy with other things."""

LOOK_S: Final = 0.03


async def patiently(look: Callable[[], Any], what: str) -> Any:
    """The first true value that ``look`` gives. Less often asked than ``until`` does: there are thousands of steps."""
    return await until(look, within=PATIENCE_S, every=LOOK_S, what=what)


@dataclass(frozen=True)
class Member:
    """A process of a job, as it entered itself in the job's book."""

    attempt: int
    role: str
    process: Process


class Book:
    """The book of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.killed: set[Process] = set()  # by the test, one by one

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def members(self) -> list[Member]:
        """All processes that ever were, in the order in which they came."""
        return [
            Member(int(line[0]), line[1], Process(int(line[2]), int(line[3])))
            for line in self.lines()
            if line[0].isdigit()
        ]

    def living(self) -> list[Member]:
        return [member for member in self.members() if alive(member.process)]

    def doubled(self) -> list[str]:
        """What lived beside something that must have ended before it began."""
        return [" ".join(line[1:]) for line in self.lines() if line[0] == "doubled:"]

    def main(self, attempt: int) -> Member | None:
        return next((one for one in self.members() if (one.attempt, one.role) == (attempt, "main")), None)

    async def order(self, attempt: int, *orders: str) -> None:
        """Give orders to the main process; wait for its answer to all but an end."""
        for order in orders:
            answered = self.lines().count(["did"])
            handle = os.open(f"{self.path}.{attempt}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(handle, order.encode() + b"\n")
            os.close(handle)
            if order.split()[0] in ("exit", "signal"):
                return
            await patiently(partial(self._did, answered + 1), order)

    def _did(self, orders: int) -> bool:
        return self.lines().count(["did"]) >= orders
