"""One prompt to its end: asked again after a failure, its answer judged and kept, or set aside with a reason."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

import msgspec

from pipeline.answers import ABORTED, faults
from pipeline.generate.board import Board
from pipeline.generate.fleet import Fleet, Server
from pipeline.generate.judge import blame, decide
from pipeline.generate.outcome import IN_HAND, LATE, Generated, RefusedError, RunError, TroubleError
from pipeline.generate.poison import Crashes
from pipeline.generate.prompts import Prompt, read_ids
from pipeline.generate.settings import Settings
from pipeline.generate.store import ERRORS, Answer, SetAside
from pipeline.generate.writer import Line, Writer

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
LATELY: Final = 200  # settled prompts that the share of those set aside is taken of
REFUSED_LEAST: Final = 20  # prompts set aside before their share says anything


def backoff(failures: int, draw: random.Random) -> float:
    """Seconds before the next attempt: doubling, with jitter so that 150 of them do not come back at once."""
    return float(min(BACKOFF_S * 2 ** min(failures - 1, 10), BACKOFF_MAX_S)) * draw.uniform(0.5, 1.5)


class _SampleError(TroubleError):
    """An answer came, and is not to be kept: another sample may do."""


@dataclass
class _Tries:
    """What was spent on one prompt."""

    failures: int = 0  # attempts without an answer
    refusals: int = 0  # attempts that a busy server put off
    samples: int = 0  # answers


class Settler:
    """``failing`` are prompts whose newest attempt failed, and how; ``unanswered`` those whose retries ran out."""

    def __init__(self, settings: Settings, fleet: Fleet, writer: Writer, board: Board) -> None:
        self._settings = settings
        self._fleet = fleet
        self._writer = writer
        self._board = board
        self._draw = random.Random()  # noqa: S311 - jitter
        self._crashes = Crashes(settings.suspect_after)
        self._lately: deque[str] = deque(maxlen=LATELY)  # of settled prompts: why set aside, "" for an answer
        self.failing: dict[str, str] = {}
        self.unanswered: list[str] = []

    async def settle(self, prompt: Prompt) -> None:
        """Ask until there is an answer, or until it is clear that there will be none. Raises RunError."""
        ids, tries = read_ids(prompt), _Tries()
        try:
            while True:
                pause_s = await self._turn(prompt, ids, tries)
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
        finally:
            self.failing.pop(prompt.key, None)
            self._crashes.forget(prompt.key)
            self._fleet.clear(prompt.key)

    async def _turn(self, prompt: Prompt, ids: list[int], tries: _Tries) -> float | None:
        """One attempt, when it may be made. Seconds until the next one; None where the prompt is settled."""
        suspect = self._crashes.suspicious(prompt.key)
        async with self._fleet.seat(prompt, suspect=suspect) as server, server.turns.take(prompt.key) as alone:
            if not server.there:
                return 0.0  # it closed while others had their turn
            try:
                await self._attempt(server, prompt, ids, tries)
            except RefusedError as error:
                await self._set_aside(prompt, str(error), error.kind, permanent=True)
            except TroubleError as error:
                self.failing[prompt.key] = str(error)
                if error.gone and await server.gate.suspect():
                    # The server's failure, not this prompt's, unless it goes down under it again and again.
                    return await self._crashed(server, prompt, alone) if error.kind in IN_HAND else 0.0
                return await self._failed(prompt, error, tries)
            return None

    async def _attempt(self, server: Server, prompt: Prompt, ids: list[int], tries: _Tries) -> None:
        latency_s = 0.0
        try:
            # Without a limit of its own: the board ends it, as the limit follows the speed while the request runs.
            async with asyncio.timeout(None) as scope:
                self._board.depart(prompt, scope)
                generated = await server.engine.generate(ids, prompt.sampling, prompt.key)
        except TimeoutError:
            raise TroubleError(LATE, gone=True) from None
        finally:
            latency_s = self._board.land(prompt)
        policy = self._settings.policy
        found = tuple(faults(generated.output_ids, generated.finish, self._settings.stop_ids, policy.thinking_end))
        decision = decide(found, tries.samples + 1, policy, greedy=prompt.sampling.temperature == 0)
        if decision == "retry":
            # A server that is about to go ends what it has in hand.
            raise _SampleError(f"answer {', '.join(found)}", kind=f"answer {found[0]}", gone=ABORTED in found)
        if decision == "set aside":
            kind = f"answer {found[0]}"
            await self._set_aside(prompt, blame(found, tries.samples + 1, policy), kind, permanent=True)
            return
        server.answered(generated.completion_tokens)
        self._board.finished(prompt, generated.completion_tokens, latency_s)
        await self._keep(prompt, generated, latency_s, found)

    async def _failed(self, prompt: Prompt, error: TroubleError, tries: _Tries) -> float | None:
        """Seconds until the next attempt; None, and the prompt is set aside, after the last one."""
        if isinstance(error, _SampleError):
            tries.samples += 1  # how many there may be is the judge's to say
            spent = tries.samples
        elif error.busy:
            tries.refusals += 1
            spent = tries.refusals
        else:
            tries.failures += 1
            spent = tries.failures
            if spent > self._settings.retries:
                await self._set_aside(prompt, f"{error}, {spent} attempts", error.kind, permanent=False)
                return None
        self._board.retried(error.kind)
        return max(backoff(spent, self._draw), error.wait_s * self._draw.uniform(1.0, 1.2))

    async def _crashed(self, server: Server, prompt: Prompt, alone: bool) -> float | None:
        """The server went down with this prompt in hand. None, and it is set aside, where it had nothing else."""
        crashes = self._crashes.under(prompt.key)
        if alone:
            reason = f"the server went down {crashes} times while it was answering this"
            await self._set_aside(prompt, reason, "the server went down while it was answering this", permanent=True)
            return None
        if self._crashes.suspicious(prompt.key):
            server.turns.suspect(prompt.key)
        return 0.0

    async def _keep(self, prompt: Prompt, generated: Generated, latency_s: float, found: tuple[str, ...]) -> None:
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
            faults=found,
        )
        finish, tokens = generated.finish, generated.completion_tokens
        self._lately.append("")
        await self._writer.put(
            Line(
                f"{prompt.dataset}.jsonl",
                msgspec.json.encode(answer) + b"\n",
                lambda: self._board.written(prompt, finish, tokens, found),
            )
        )

    async def _set_aside(self, prompt: Prompt, reason: str, kind: str, *, permanent: bool) -> None:
        one = SetAside(prompt.key, prompt.dataset, prompt.ids_hash, reason, permanent, time.time(), kind)
        await self._writer.put(
            Line(ERRORS, msgspec.json.encode(one) + b"\n", lambda: self._board.set_aside(prompt, kind))
        )
        if not permanent:
            self.unanswered.append(prompt.key)
        self._lately.append(kind)
        kinds = Counter(kind for kind in self._lately if kind)
        aside, share = kinds.total(), self._settings.max_set_aside_share
        if aside >= REFUSED_LEAST and aside > share * len(self._lately):
            worst, count = kinds.most_common(1)[0]
            raise RunError(
                f"{aside} of the last {len(self._lately)} prompts were set aside, more than {share:.0%}; "
                f"most often, {count} times: {worst}"
            )
