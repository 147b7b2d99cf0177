"""Is the agent where the model is? What it says is held against the model, its stream, and the processes there are."""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
import time
from collections.abc import Iterable, Mapping
from functools import partial

import httpx

from pipeline.protocol import AgentInfo, Attempt, JobState, JobStatus, Need
from tests.agent.machine.book import LOOK_S, PATIENCE_S, Book, patiently
from tests.agent.machine.model import RUNS, End, Model, ModelJob, Past
from tests.agent.machine.world import World

ENDED = (JobState.DONE, JobState.EMPTY, JobState.FAILED, JobState.STOPPED, JobState.LOST)


class Comparison:
    """The jobs of one walk, whose names begin with ``prefix``, in the world and in the model."""

    def __init__(self, world: World, prefix: str, capacity: int) -> None:
        self.world = world
        self.prefix = prefix
        self.model = Model(capacity)
        self.unwatched: set[tuple[str, int]] = set()
        """Attempts, by job and number, whose shim was killed."""
        self.loose: set[str] = set()
        """Jobs that were asked for several things at once: how many attempts that took is not foretold."""
        self._rested = self.model
        self._books: dict[str, Book] = {}
        self._began = self._folded = len(world.follower.events)
        self._seen: dict[str, JobStatus] = {}
        self._looked: dict[str, tuple[int, JobStatus]] = {}
        """Agent and job when the journal of the job's attempts was last looked at."""

    def book(self, job: str) -> Book:
        return self._books.setdefault(job, self.world.book(job))

    def statuses(self) -> dict[str, JobStatus]:
        """What the stream says of each job."""
        found = self.world.follower.statuses
        return {name: status for name, status in found.items() if name.startswith(self.prefix)}

    def attempt(self, job: str) -> int:
        """The number of the newest attempt that the stream tells of; 0 where there is none yet."""
        status = self.statuses().get(job)
        return status.attempt if status is not None else 0

    def is_over(self, job: str, attempt: int) -> bool:
        """Whether the stream tells that an attempt has ended."""
        newest = self.attempt(job)
        return newest > attempt or (newest == attempt and self.statuses()[job].state in (*ENDED, JobState.BACKOFF))

    async def settle(self) -> None:
        """Wait until all is as the model says; then look at what happened on the way."""
        deadline = time.monotonic() + PATIENCE_S
        # What was answered is decided; the stream may still have to tell it.
        await patiently(self._told, "the stream to tell what the state does")
        while found := self._differences():
            if time.monotonic() > deadline:
                raise AssertionError("; ".join(found))
            await asyncio.sleep(LOOK_S)
        agent: AgentInfo = await patiently(partial(self._told, keeper=True), "a keeper, and the stream to tell all")
        self._starts_were_allowed()
        for name, job in self.model.jobs.items():
            looked = agent.pid, self.statuses()[name]
            if self._looked.get(name) != looked:
                detail = await self.world.detail(name)
                self._attempts_are(job, [attempt for attempt in detail.attempts if attempt.state != "abandoned"])
                self._looked[name] = looked
        self._rested = copy.deepcopy(self.model)
        self.loose.clear()

    # --- at rest ---

    def _differences(self) -> list[str]:
        """How the agent and its processes differ from the model once that has come to rest; [] where it is taken on."""
        assert not self.world.follower.fault, self.world.follower.fault
        doubled = [f"{name}: {line}" for name, book in self._books.items() for line in book.doubled()]
        assert not doubled, f"started twice: {doubled}"
        statuses = self.statuses()
        expected = copy.deepcopy(self.model)
        expected.settle({name for name, status in statuses.items() if status.state in RUNS})
        found = [f"{name} is in one plan only" for name in statuses.keys() ^ expected.jobs.keys()]
        for name, job in expected.jobs.items():
            if name in statuses:
                found += [f"{name}: {text}" for text in self._job_differs(job, statuses[name])]
        for name in self._books.keys() - expected.jobs.keys():
            found += [f"{member} of {name} lives on" for member in self._books[name].living()]
        if not found:
            self.model = expected
        return found

    def _job_differs(self, job: ModelJob, status: JobStatus) -> Iterable[str]:
        said = (status.state, status.restarts, status.waived)
        if said != (job.state, job.restarts, job.waived):
            yield f"is {said}: {status.reason}; should be {(job.state, job.restarts, job.waived)}"
        book = self.book(job.spec.name)
        should = {
            member.process
            for member in book.members()
            if job.runs and member.attempt == status.attempt and member.process not in book.killed
        }
        lives = {member.process for member in book.living()}
        if lives != should:
            yield f"{lives} live, should be {should}"
        if job.runs:
            main = book.main(status.attempt)
            if main is None or status.pid != main.process.pid:
                yield f"process {status.pid} is shown, the book has {main}"
        elif status.pid is not None:
            yield f"process {status.pid} is shown"
        if job.state in ENDED and job.spec.name not in self.loose:
            if End(status.exit_code, status.signal) != job.end:
                yield f"exit {status.exit_code}, signal {status.signal}; should be {job.end}"
            if job.state is JobState.STOPPED and job.attempted and _who(status.reason) != job.stopped_by:
                yield f"{status.reason}; should be by {job.stopped_by}"

    # --- on the way ---

    async def _told(self, *, keeper: bool = False) -> AgentInfo | None:
        """The agent, once statuses folded from its events are those that its state gives, and it has a ``keeper``."""
        assert not self.world.follower.fault, self.world.follower.fault
        try:
            state = await self.world.rig.state()
        except httpx.TransportError:  # a strike may come late
            return None
        told = len(self.world.follower.events) == state.seq and self.world.follower.statuses == state.jobs
        return state.agent if told and (state.agent.keeper or not keeper) else None

    async def is_told_again(self) -> None:
        """A console that comes late hears what the first one did."""
        events = self.world.follower.events[self._began :]
        told = []
        async for line in self.world.rig.stream(self._began):
            told += [line.event] if line.event is not None else []
            if line.beat is not None and line.beat.seq >= self._began + len(events):
                break
        assert told[: len(events)] == events, f"told again: {len(told)} events of {len(events)}, or others"
        assert " ERROR " not in self.world.rig.log(), self.world.rig.log()

    def _starts_were_allowed(self) -> None:
        """Whenever a job began to start, its needs held, those of the old plan or those of the new."""
        for event in itertools.islice(self.world.follower.events, self._folded, None):
            self._folded = event.seq
            if event.status is None:
                continue
            name = event.status.name
            if event.status.state is JobState.STARTING:
                plans = [plan.jobs[name].spec.needs for plan in (self._rested, self.model) if name in plan.jobs]
                assert any(_hold(needs, self._seen) for needs in plans), f"{name} started before {plans}"
            self._seen[name] = event.status

    def _attempts_are(self, job: ModelJob, attempts: list[Attempt]) -> None:
        """The journal has each attempt once, with its true end, and no other ran."""
        name = job.spec.name
        numbers = [attempt.number for attempt in attempts]
        assert numbers == sorted(set(numbers)), f"{name}: attempts {numbers}"
        mains = [member.attempt for member in self.book(name).members() if member.role == "main"]
        assert len(mains) == len(set(mains)) and set(mains) <= set(numbers), f"{name}: {mains} ran, journaled {numbers}"
        if job.runs:
            assert attempts.pop().ended_at is None, f"{name} runs, but its attempt has ended"
        past = [Past(End(attempt.exit_code, attempt.signal), JobState(attempt.state)) for attempt in attempts]
        expected = self.model.past.get(name, [])
        if name in self.loose:
            assert len(past) <= len(expected), f"{name}: ended {past}, at most {expected}"
            status = self.statuses()[name]
            self.model.past[name] = past
            job.end, job.attempted = End(status.exit_code, status.signal), status.attempt > 0
            job.stopped_by = _who(status.reason)
        assert past == self.model.past.get(name, []), f"{name}: ended {past}, should be {expected}"


def _who(reason: str) -> str:
    """Who stopped a job."""
    found = re.match(r"(?:stopped|killed) by (\w+)", reason)
    return found[1] if found else ""


def _hold(needs: tuple[Need, ...], statuses: Mapping[str, JobStatus]) -> bool:
    def holds(need: Need) -> bool:
        status = statuses.get(need.job)
        wanted = JobState.READY if need.condition == "ready" else JobState.DONE
        return status is not None and (bool(status.waived) or status.state is wanted)

    return all(map(holds, needs))
