"""The steps of operators: plans, wishes for jobs, and the same wish twice."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from hypothesis.stateful import initialize

from pipeline.protocol import ActionRequest, JobSpec
from tests.agent.machine.choices import any_client, any_strike, by_chance, seeds
from tests.agent.machine.model import End
from tests.agent.machine.plans import edited, in_words
from tests.agent.machine.walk import Walk
from tests.agent.machine.world import CALM

CHANGES: Final = ("plan", "remove and add", "repeat", "burst")
WISHES: Final = ("start", "stop", "restart", "kill")
STARTS: Final = ("start", "restart", "restart-with-dependents", "restart-crashed")
STOPS: Final = ("stop", "kill", "waive")


class Operators(Walk):
    """What consoles send."""

    @initialize(seed=seeds)
    def first_plan(self, seed: int) -> None:
        chance = Random(seed)
        specs: list[JobSpec] = []
        for _ in range(chance.randint(2, 4)):
            specs.append(self.make(chance, specs))
        self.step("plan", "; ".join(map(in_words, specs)), self.put("alice", specs, frozenset(), CALM))

    @by_chance
    def change_plan(self, chance: Random) -> None:
        """Jobs are added, removed and changed, up to three at once."""
        client, strike = any_client(chance), any_strike(chance)
        specs = [job.spec for job in self.jobs.values()]
        for _ in range(chance.randint(1, 3)):
            specs = edited(chance, specs, partial(self.make, chance))
        confirm = frozenset(spec.name for spec in specs if chance.random() < 0.5)
        words = f"{'; '.join(map(in_words, specs))} by {client}, confirmed: {' '.join(confirm)}"
        self.step("plan", words, self.put(client, specs, confirm, strike), strike)

    @by_chance
    def remove_and_add(self, chance: Random) -> None:
        """A job that comes back at once, its old processes perhaps not yet gone, is a new one."""
        names = self.idle_leaves()
        if not names or chance.random() < 0.5:
            return self.otherwise(chance)
        name, client, strike = chance.choice(names), any_client(chance), any_strike(chance)
        specs = [job.spec for job in self.jobs.values()]

        async def deed() -> None:
            self.both.loose.add(name)
            await self.put(client, [spec for spec in specs if spec.name != name], frozenset(), CALM)
            await self.put(client, specs, frozenset(), strike)

        return self.step("remove and add", f"{name} by {client}", deed(), strike)

    @by_chance
    def ask_to_start(self, chance: Random) -> None:
        self.ask(chance, STARTS)

    @by_chance
    def ask_to_stop(self, chance: Random) -> None:
        self.ask(chance, STOPS)

    def ask(self, chance: Random, actions: tuple[str, ...]) -> None:
        if not self.jobs:
            return self.otherwise(chance)
        name, action = chance.choice(list(self.jobs)), chance.choice(actions)
        client, strike = any_client(chance), any_strike(chance)

        async def deed() -> None:
            target, ends = self.target(name), self.ends_when_told(action)
            reply = await self.request(target, action, client, strike)
            ends[name] = self.true_end(target, ends[name])
            assert reply.done is self.wish(name, action, client, ends), reply

        return self.step(action, f"{name} by {client}", deed(), strike)

    @by_chance
    def repeat(self, chance: Random) -> None:
        """A request that was answered before is answered again, and nothing is done."""
        if not self.repeatable():
            return self.otherwise(chance)
        _, path, request, answer = chance.choice(self.repeatable())
        client, strike = any_client(chance), any_strike(chance)

        async def deed() -> None:
            body = ActionRequest(client, request, "for a second time")
            assert await self.world.amid(strike, self.world.send(client, "POST", path, body)) == answer, (
                "another answer"
            )

        return self.step("repeat", f"{path} by {client}", deed(), strike)

    @by_chance
    def burst(self, chance: Random) -> None:
        """Several wishes for one job at once: it rests where the last of them puts it."""
        names = self.idle_leaves()
        if not names or chance.random() < 0.5:
            return self.otherwise(chance)
        name, client, strike = chance.choice(names), any_client(chance), any_strike(chance)
        actions = chance.choices(WISHES, k=chance.randint(2, 4))

        async def deed() -> None:
            target = self.target(name)
            self.both.loose.add(name)
            for action in actions[:-1]:
                await self.request(target, action, client, CALM)
            await self.request(target, actions[-1], client, strike)
            self.true_end(target, End())
            for action in actions:
                self.wish(name, action, client, {name: End()})
                self.model.settle({name})

        return self.step("burst", f"{name}: {', '.join(actions)} by {client}", deed(), strike)
