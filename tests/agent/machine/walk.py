"""A walk through what can happen: its model, the lane it is taken in, and the one way to take a step.

The steps are in ``operators``, ``harm`` and ``rules``.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from signal import SIGKILL, SIGTERM
from typing import Any

import msgspec

from pipeline.agent.attempts.identity import Process, alive
from pipeline.agent.attempts.records import read_exit
from pipeline.protocol import ActionReply, ActionRequest, ApplyReply, ApplyRequest, JobSpec, JobState
from tests.agent.machine.book import Book
from tests.agent.machine.comparison import Comparison
from tests.agent.machine.lanes import Machine
from tests.agent.machine.model import End, Model, ModelJob
from tests.agent.machine.plans import CAPACITY, new_spec, plan_of
from tests.agent.machine.world import CALM, Strike


@dataclass(frozen=True)
class Target:
    """A job as it is before something is done to it; without a shim where it does not run."""

    job: str
    attempt: int
    book: Book
    shim: Process | None


class Walk(Machine):
    """Names of jobs are new in each walk, so that one agent serves all walks of a lane."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"x{self.lane.begin()}:"
        self.world = self.lane.world
        self.both = Comparison(self.world, self.prefix, CAPACITY)
        self.asked: list[tuple[str, str, str, bytes]] = []
        """Job, path, the request's id, and its answer."""
        self._numbers = itertools.count(1)
        self.story: list[str] = []

    def step(self, kind: str, text: str, deed: Coroutine[Any, Any, None], strike: Strike = CALM) -> None:
        """Do one thing, then wait until all is as the model says."""
        self.lane.steps += 1
        self.lane.done.update((kind, strike.victim))
        self.story.append(f"{kind} {text}{strike}")

        async def whole() -> None:
            await deed
            await self.both.settle()

        self.lane.take(whole(), self.story)

    def otherwise(self, chance: Random) -> None:
        """Something that can be done now, where a step finds no job to be done to."""
        raise NotImplementedError

    def teardown(self) -> None:
        """An empty plan ends all. Nothing is left of the walk's jobs, and who comes late hears all that happened."""
        if self.lane.given_up:
            return

        async def deed() -> None:
            await self.put("alice", [], frozenset(), CALM)
            await self.both.settle()
            await self.both.is_told_again()
            left = self.world.left_behind(self.prefix)
            assert not left, f"processes left behind: {left}"

        self.lane.take(deed(), [*self.story, "end of the walk"])

    # --- the same to both ---

    async def put(self, client: str, specs: list[JobSpec], confirm: frozenset[str], strike: Strike) -> None:
        """Apply a plan."""
        effects = {spec.name: self.model.effect(spec) for spec in specs}
        ends = self.ends_when_told("stop")
        applied = self.model.apply(specs, confirm, client, ends)
        body = ApplyRequest(plan_of(specs), client, tuple(confirm))
        answer = await self.world.amid(strike, self.world.send(client, "PUT", "/v1/plan", body))
        reply = msgspec.json.decode(answer, type=ApplyReply)
        assert reply.applied is applied, reply
        if not strike.victim:  # else it may be the answer to the second time that it was sent
            said = {change.job: change.effect for change in reply.changes if change.effect != "removed"}
            assert said == effects, f"{reply.changes}; should be {effects}"

    async def request(self, target: Target, action: str, client: str, strike: Strike) -> ActionReply:
        """Ask the agent for something. Both consoles send it, as one does that doubts its link."""
        path = f"/v1/{action}" if action == "restart-crashed" else f"/v1/jobs/{target.job}/{action}"
        body = ActionRequest(client, uuid.uuid4().hex, "no matter" if action == "waive" else "")
        sending = asyncio.gather(*(self.world.send(one, "POST", path, body) for one in self.world.clients))
        answer, second = await self.world.amid(strike, sending, target.shim)
        assert answer == second, f"one request, two answers: {answer!r}, {second!r}"
        self.asked.append((target.job, path, body.request, answer))
        return msgspec.json.decode(answer, type=ActionReply)

    def wish(self, name: str, action: str, client: str, ends: Mapping[str, End]) -> bool:
        """What ``request`` asks for, in the model; whether it is done."""
        if action == "start":
            self.model.start(name)
        elif action == "restart":
            self.model.restart(name, client, ends[name])
        elif action == "restart-with-dependents":
            self.model.restart_with_dependents(name, client, ends)
        elif action == "restart-crashed":
            self.model.restart_crashed()
        elif action == "waive":
            return self.model.waive(name, "no matter")
        else:
            self.model.stop(name, client, ends[name])
        return True

    def ends_when_told(self, action: str) -> dict[str, End]:
        """How each job ends if an operator ends it."""
        return {
            name: self.true_end(
                self.target(name), End(signal=SIGKILL if action == "kill" or "stubborn" in job.spec.argv else SIGTERM)
            )
            for name, job in self.jobs.items()
        }

    def true_end(self, target: Target, told: End) -> End:
        """What can be known of an attempt's end: nothing, where its shim was killed before it could record it."""
        folder = self.world.rig.folder(target.job, target.attempt)
        if target.shim is not None and not alive(target.shim) and read_exit(folder) is None:
            self.both.unwatched.add((target.job, target.attempt))
        return End() if (target.job, target.attempt) in self.both.unwatched else told

    def ended(self, target: Target, orders: tuple[str, ...], end: End) -> None:
        """A job did what ``orders`` say and ended, in the model."""
        job = self.jobs[target.job]
        for word, number in (order.split() for order in orders):
            if word == "progress":
                job.said_progress = int(number)
            elif word == "result":
                job.said_result = int(number)
        self.model.ended(target.job, end)

    # --- which jobs ---

    @property
    def model(self) -> Model:
        return self.both.model

    @property
    def jobs(self) -> dict[str, ModelJob]:
        return self.both.model.jobs

    def make(self, chance: Random, before: list[JobSpec]) -> JobSpec:
        """A new job that may need those before it."""
        name = f"{self.prefix}{next(self._numbers)}"
        return new_spec(chance, name, self.world.argv(name), before)

    def target(self, name: str) -> Target:
        attempt = self.both.statuses()[name].attempt
        shim = self.world.shim(name, attempt) if self.jobs[name].runs else None
        return Target(name, attempt, self.both.book(name), shim)

    def running(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.runs]

    def leaves(self) -> list[str]:
        """Jobs that no other needs."""
        needed = {need.job for job in self.jobs.values() for need in job.spec.needs}
        return [name for name in self.jobs if name not in needed]

    def unrelated(self) -> list[str]:
        """Running jobs that may end in any order."""
        return [name for name in self.running() if name in self.leaves()] or self.running()[:1]

    def idle_leaves(self) -> list[str]:
        """Jobs whose passing states nothing waits for: no need, no memory, no records that another attempt hides."""
        if any(job.state is JobState.QUEUED for job in self.jobs.values()):
            return []
        said = {name for name, job in self.jobs.items() if job.said_result is not None or job.said_progress}
        return [name for name in self.leaves() if name not in said]

    def startable(self) -> list[str]:
        """Of these, jobs at rest that would run if asked to."""
        return [name for name in self.idle_leaves() if not self.jobs[name].runs and self._would_run(name)]

    def _would_run(self, name: str) -> bool:
        model = copy.deepcopy(self.both.model)
        model.start(name)
        model.settle({name})
        return model.jobs[name].runs

    def repeatable(self) -> list[tuple[str, str, str, bytes]]:
        """The newest requests that can still be sent."""
        return [asked for asked in self.asked if asked[0] in self.jobs][-5:]
