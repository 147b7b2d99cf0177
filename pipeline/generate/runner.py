"""Send every missing prompt, keep the slots full, outlive the server's failures, hand every answer to the writer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pipeline.generate.board import Board
from pipeline.generate.gate import Gate
from pipeline.generate.outcome import Generated, RefusedError, TroubleError
from pipeline.generate.prompts import Prompt, order, read_ids
from pipeline.generate.settings import Settings
from pipeline.generate.store import ERRORS, Answer, SetAside
from pipeline.generate.writer import Line, Writer
from pipeline.progress import Reporter

if TYPE_CHECKING:
    from pipeline.generate.engine import SGLang

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
TICK_S: Final = 0.5
LOAD_EVERY_S: Final = 5.0
NAMED: Final = 3  # ids in a note
REFUSED_LEAST: Final = 20
"""So many refused prompts, and more of them than answers, end the run: something is wrong with all of them."""


class RunError(Exception):
    """The run cannot go on; the text says why and what to do."""


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


def backoff(failures: int, draw: random.Random) -> float:
    """Seconds before the next attempt: doubling, with jitter so that 150 of them do not come back at once."""
    return float(min(BACKOFF_S * 2 ** (failures - 1), BACKOFF_MAX_S)) * draw.uniform(0.5, 1.5)


class Runner:
    """One run over what is missing. ``unanswered`` are the prompts whose retries ran out."""

    def __init__(self, settings: Settings, engine: SGLang, writer: Writer, board: Board, reporter: Reporter) -> None:
        self._settings = settings
        self._engine = engine
        self._writer = writer
        self._board = board
        self._reporter = reporter
        self._gate = Gate(engine.healthy)
        self._draw = random.Random()  # noqa: S311 - jitter
        self._phase = "waiting for the server"
        self._notes: list[str] = []
        self._refused = 0
        self._failing: dict[str, str] = {}  # prompts whose newest attempt failed, and how; asked again
        self.unanswered: list[str] = []

    async def run(self, legs: list[Leg], notes: list[str]) -> None:
        """Raises RunError; a cancelled run leaves everything written that was answered."""
        self._notes = notes
        writing = asyncio.create_task(self._writer.run())
        helpers = [asyncio.create_task(job) for job in (self._gate.run(), self._tick(), self._watch_load())]
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
        await self._gate.wait()
        await self._check_model()
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
            figures=board.figures(),
            note=self._note(),
            eta=board.eta(),
            force=force,
        )

    async def _check_model(self) -> None:
        planned = self._settings.model_path
        found = await self._engine.model_path() if planned is not None else None
        if planned is not None and found != planned:
            raise RunError(f"{self._settings.server} serves {found or 'an unknown model'}, --model-path is {planned}")

    async def _chain(self, legs: list[Leg]) -> None:
        for leg in legs:
            self._phase = leg.phase
            partition = self._settings.partition(leg.partition)
            assert partition is not None
            queue = deque(leg.prompts)
            async with asyncio.TaskGroup() as group:
                for _ in range(min(partition.concurrency, len(queue))):
                    group.create_task(self._work(queue))

    async def _work(self, queue: deque[Prompt]) -> None:
        while queue:
            prompt = queue.popleft()
            await self._answer(prompt)

    async def _answer(self, prompt: Prompt) -> None:
        try:
            await self._settle(prompt, read_ids(prompt))
        finally:
            self._failing.pop(prompt.key, None)

    async def _settle(self, prompt: Prompt, ids: list[int]) -> None:
        """Ask until there is an answer, or until it is clear that there will be none."""
        failures = 0
        while True:
            await self._gate.wait()
            try:
                generated, latency_s = await self._attempt(prompt, ids)
            except RefusedError as error:
                await self._set_aside(prompt, str(error), permanent=True)
                return
            except TroubleError as error:
                self._failing[prompt.key] = str(error)
                if error.gone and await self._gate.suspect():
                    continue  # the server's failure, not this prompt's
                failures += 1
                if failures > self._settings.retries:
                    await self._set_aside(prompt, f"{error}, {failures} attempts", permanent=False)
                    return
                self._board.retries += 1
                await asyncio.sleep(backoff(failures, self._draw))
                continue
            await self._keep(prompt, generated, latency_s)
            return

    async def _attempt(self, prompt: Prompt, ids: list[int]) -> tuple[Generated, float]:
        latency_s = 0.0
        try:
            # Without a limit of its own: the board ends it, as the limit follows the speed while the request runs.
            async with asyncio.timeout(None) as scope:
                self._board.depart(prompt, scope)
                generated = await self._engine.generate(ids, prompt.sampling, prompt.key)
        except TimeoutError:
            raise TroubleError("no answer in time", gone=True) from None
        finally:
            latency_s = self._board.land(prompt)
        self._board.finished(prompt, generated.completion_tokens, latency_s)
        return generated, latency_s

    async def _keep(self, prompt: Prompt, generated: Generated, latency_s: float) -> None:
        answer = Answer(
            key=prompt.key,
            dataset=prompt.dataset,
            prompt_hash=prompt.ids_hash,
            output_ids=generated.output_ids,
            finish=generated.finish,
            prompt_tokens=generated.prompt_tokens,
            completion_tokens=generated.completion_tokens,
            latency_s=round(latency_s, 3),
            sampling=prompt.sampling,
        )
        finish, tokens = generated.finish, generated.completion_tokens
        await self._writer.put(
            Line(
                f"{prompt.dataset}.jsonl",
                msgspec.json.encode(answer) + b"\n",
                lambda: self._board.written(prompt, finish, tokens),
            )
        )

    async def _set_aside(self, prompt: Prompt, reason: str, *, permanent: bool) -> None:
        one = SetAside(prompt.key, prompt.dataset, prompt.ids_hash, reason, permanent, time.time())
        await self._writer.put(
            Line(ERRORS, msgspec.json.encode(one) + b"\n", lambda: self._board.set_aside(prompt, reason))
        )
        if not permanent:
            self.unanswered.append(prompt.key)
            return
        self._refused += 1
        if self._refused >= REFUSED_LEAST and self._refused > self._board.answered:
            raise RunError(f"{self._refused} prompts refused, more than were answered; the last one: {reason}")

    async def _tick(self) -> None:
        while True:
            self._board.expire()
            self.report()
            await asyncio.sleep(TICK_S)

    async def _watch_load(self) -> None:
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            self._board.loaded(await self._engine.load())

    def _note(self) -> str:
        board, gate = self._board, self._gate
        notes = [self._writer.trouble] if self._writer.trouble else []
        if gate.closed_at is not None:
            for_s = time.monotonic() - gate.closed_at
            what = "gone" if gate.losses else "not there yet"
            notes.append(f"server {what} for {for_s:.0f} s, waits for it")
        waiting = sum(part.waiting for part in board.parts.values())
        if self._failing and (gate.losses or waiting <= len(self._failing)):
            # A server that goes down under the same prompts again and again is told by their names.
            named = ", ".join(f"{key} ({reason})" for key, reason in list(self._failing.items())[:NAMED])
            more = ", …" if len(self._failing) > NAMED else ""
            notes.append(f"{len(self._failing)} prompts to be asked again: {named}{more}")
        if not waiting and 0 < len(board.flights) <= 5:
            notes.append("waits for " + ", ".join(f"{key} ({age:.0f} s)" for key, age in board.oldest(5)))
        if gate.losses:
            notes.append(f"server lost {gate.losses} times")
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
