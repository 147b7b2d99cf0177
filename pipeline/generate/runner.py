"""Send every missing prompt, keep the slots full, outlive the server's failures, hand every answer to the writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pipeline.generate.board import Board
from pipeline.generate.fleet import Fleet
from pipeline.generate.outcome import RunError
from pipeline.generate.prompts import Prompt, order
from pipeline.generate.settings import Settings
from pipeline.generate.settle import Settler
from pipeline.generate.writer import Writer
from pipeline.progress import Reporter

TICK_S: Final = 0.5
LOAD_EVERY_S: Final = 5.0
NAMED: Final = 3  # ids, or kinds of failure, in a note


@dataclass(frozen=True)
class Leg:
    """Prompts of one partition that run together."""

    phase: str
    partition: str
    prompts: tuple[Prompt, ...]


def plan_legs(settings: Settings, missing: Iterable[Prompt], answered: Counter[str]) -> list[Leg]:
    """Pilots of every partition first, then what is left, in the order of the partitions; neighbours are joined."""
    pilot, rest = order(missing, answered, settings.pilot, settings.seed)
    legs: list[Leg] = []
    for phase, prompts in (("pilot", pilot), ("main", rest)):
        for partition in settings.partitions:
            mine = tuple(prompt for prompt in prompts if prompt.partition == partition.name)
            if mine and legs and legs[-1].partition == partition.name:
                legs[-1] = Leg("main", partition.name, legs[-1].prompts + mine)
            elif mine:
                legs.append(Leg(phase, partition.name, mine))
    return legs


class Runner:
    """One run over what is missing."""

    def __init__(self, settings: Settings, fleet: Fleet, writer: Writer, board: Board, reporter: Reporter) -> None:
        self._settings = settings
        self._fleet = fleet
        self._writer = writer
        self._board = board
        self._reporter = reporter
        self._settler = Settler(settings, fleet, writer, board)
        self._awaited: dict[str, str] = {}  # partitions with nothing left to send, and what waits for their end
        self._phase = "waiting for the server"
        self._notes: list[str] = []

    @property
    def unanswered(self) -> list[str]:
        """The prompts whose retries ran out."""
        return self._settler.unanswered

    async def run(self, legs: list[Leg], notes: list[str]) -> None:
        """Raises RunError; a cancelled run leaves everything written that was answered."""
        self._notes = notes
        writing = asyncio.create_task(self._writer.run())
        gates = [server.gate.run() for server in self._fleet.servers]
        helpers = [asyncio.create_task(job) for job in (*gates, self._tick(), self._watch_load())]
        work = asyncio.create_task(self._all(legs))
        try:
            # The others end only by an error, which must not leave the workers waiting for ever.
            ended, _ = await asyncio.wait({work, writing, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self._phase = "writing"
            for task in (work, *helpers):
                task.cancel()
            await asyncio.gather(work, *helpers, return_exceptions=True)
            self._writer.close()
            await writing
            self.report(force=True)

    async def _all(self, legs: list[Leg]) -> None:
        await self._fleet.arrived.wait()
        chains = [legs]
        if self._settings.side_by_side:
            names = dict.fromkeys(leg.partition for leg in legs)
            chains = [[leg for leg in legs if leg.partition == name] for name in names]
        async with asyncio.TaskGroup() as group:
            for chain in chains:
                group.create_task(self._chain(chain))

    def report(self, *, force: bool = False) -> None:
        board = self._board
        self._reporter.update(
            self._phase,
            done=float(board.answered + board.errors),
            total=float(board.total),
            unit="answers",
            datasets=board.counts(),
            figures=board.figures() | self._fleet.figures(),
            note=self._note(),
            eta=board.eta(),
            force=force,
        )

    async def _chain(self, legs: list[Leg]) -> None:
        """One leg after the other; with overlap the next one begins when nothing is left to send of the one before."""
        async with asyncio.TaskGroup() as group:
            for place, leg in enumerate(legs):
                self._phase = leg.phase
                queue, sent = deque(leg.prompts), asyncio.Event()
                partition = self._settings.partition(leg.partition)
                assert partition is not None
                slots = partition.concurrency * len(self._settings.servers)
                workers = [group.create_task(self._work(queue, sent)) for _ in range(min(slots, len(queue)))]
                await sent.wait()
                if not self._settings.overlap and place + 1 < len(legs):
                    self._awaited[leg.partition] = f"before {legs[place + 1].partition} goes on"
                    await asyncio.wait(workers)
                    del self._awaited[leg.partition]

    async def _work(self, queue: deque[Prompt], sent: asyncio.Event) -> None:
        while queue:
            prompt = queue.popleft()
            if not queue:
                sent.set()
            await self._settler.settle(prompt)

    async def _tick(self) -> None:
        while True:
            self._board.expire()
            self._board.servers = max(1, len(self._fleet.there))
            self._fleet.wake()
            self.report()
            await asyncio.sleep(TICK_S)

    async def _watch_load(self) -> None:
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            self._board.loaded(await self._fleet.look())

    def _note(self) -> str:
        board, fleet = self._board, self._fleet
        notes = [self._writer.trouble] if self._writer.trouble else []
        notes += fleet.notes()
        if board.moves.text:
            notes.append(board.moves.text)
        waiting = sum(part.waiting for part in board.parts.values())
        failing, suspects, alone = self._settler.failing, fleet.suspects, fleet.asked_alone
        if failing and (fleet.losses or waiting <= len(failing)):
            # A server that goes down under the same prompts again and again is told by their names.
            named = ", ".join(f"{key} ({reason})" for key, reason in list(failing.items())[:NAMED])
            more = ", …" if len(failing) > NAMED else ""
            notes.append(f"{len(failing)} prompts to be asked again: {named}{more}")
        if suspects:
            now = f", now {', '.join(alone)}" if alone else ""
            notes.append(f"{len(suspects)} prompts under which the server went down are asked one by one{now}")
        notes += [words for partition, why in self._awaited.items() if (words := board.tail(partition, why))]
        if not waiting and (words := board.tail("", "hold the run")):
            notes.append(words)
        if not waiting and 0 < len(board.flights) <= 5:
            notes.append("waits for " + ", ".join(f"{key} ({age:.0f} s)" for key, age in board.oldest(5)))
        if fleet.losses:
            notes.append(f"server lost {fleet.losses}×")
        if board.troubles:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in board.troubles.most_common(NAMED))
            notes.append(f"retried {board.troubles.total():,} times: {kinds}")
        return "; ".join(notes + self._notes)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """A run error if there is one, else the first of whatever ended the workers."""
    found: list[BaseException] = []
    stack: list[BaseException] = [errors]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(error.exceptions)
        else:
            found.append(error)
    with contextlib.suppress(StopIteration):
        return next(error for error in found if isinstance(error, RunError))
    return found[0]
