"""The steps of a walk: everything that can happen to jobs and agent, much of it with a SIGKILL in the middle.

Each step is done to a real agent and to ``model``; then ``comparison`` waits until the one is where the other is.

Hypothesis chooses the rules; what they do depends on where the walk is, and so on who won a race. Therefore each rule
makes its choices from one random seed: what Hypothesis draws is the same whenever it goes the same way again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from pipeline.agent.attempts.identity import alive, send
from pipeline.agent.attempts.records import claimed, find_shim, read_claim, read_started
from pipeline.protocol import ActionRequest, JobSpec
from tests.agent.machine.book import PATIENCE_S, patiently
from tests.agent.machine.model import End
from tests.agent.machine.plans import edited, in_words, new_spec
from tests.agent.machine.walk import Walk
from tests.agent.machine.world import CALM, VICTIMS, Strike, kill
from tests.agent.rig import until

WISHES: Final = ("start", "stop", "restart", "kill")
STARTS: Final = ("start", "restart", "restart-with-dependents", "restart-crashed")
STOPS: Final = ("stop", "kill", "waive")
GROWTH: Final = ("child", "escapee", "stubborn", "progress 5", "progress 0")
ENDS: Final = (
    ("exit 0",), ("exit 1",), ("exit 3",), ("exit 137",), ("signal 15",), ("signal 9",), ("signal 11",),
    ("result 5", "exit 0"), ("result 0", "exit 0"), ("result 0", "exit 3"), ("progress 7", "result 5", "exit 1"),
)  # fmt: skip

seeds = st.integers(0, (1 << 32) - 1)


def by_chance(step: Callable[[Any, Random], None]) -> Callable[..., Any]:
    """A rule that makes its choices from a seed, and others each time it is taken with the same one."""

    def taken(self: Walk, seed: int) -> None:
        step(self, Random(f"{seed} {len(self.story)}"))

    taken.__name__ = step.__name__
    return rule(seed=seeds)(taken)


class AgentMachine(Walk):
    """All rules. One that finds no job to be done to does something else: see ``otherwise``."""

    # --- plans ---

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
        client, strike = _client(chance), _strike(chance)
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
        name, client, strike = chance.choice(names), _client(chance), _strike(chance)
        specs = [job.spec for job in self.jobs.values()]

        async def deed() -> None:
            self.both.loose.add(name)
            await self.put(client, [spec for spec in specs if spec.name != name], frozenset(), CALM)
            await self.put(client, specs, frozenset(), strike)

        return self.step("remove and add", f"{name} by {client}", deed(), strike)

    def make(self, chance: Random, before: list[JobSpec]) -> JobSpec:
        name = self.new_name()
        return new_spec(chance, name, self.world.argv(name), before)

    # --- what operators ask for ---

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
        client, strike = _client(chance), _strike(chance)

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
        client, strike = _client(chance), _strike(chance)

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
        name, client, strike = chance.choice(names), _client(chance), _strike(chance)
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

    # --- what befalls jobs ---

    @by_chance
    def end(self, chance: Random) -> None:
        names, orders, strike = self.running(), chance.choice(ENDS), _strike(chance)
        if not names:
            return self.otherwise(chance)
        name = chance.choice(names)

        async def deed() -> None:
            target = self.target(name)
            await self.world.amid(strike, target.book.order(target.attempt, *orders), target.shim)
            self.ended(target, orders, self.true_end(target, _end_of(orders)))

        return self.step("end", f"{name}: {', '.join(orders)}", deed(), strike)

    @by_chance
    def end_unseen(self, chance: Random) -> None:
        """Jobs end while there is neither agent nor keeper: how, is known all the same."""
        names = self.unrelated()
        if not names or chance.random() < 0.6:
            return self.otherwise(chance)
        orders = {name: chance.choice(ENDS) for name in chance.sample(names, chance.randint(1, len(names)))}

        async def deed() -> None:
            targets = [self.target(name) for name in orders]
            await self.world.kill_both()
            for target in targets:
                await target.book.order(target.attempt, *orders[target.job])
            await asyncio.sleep(chance.choice((0, 0.1)))
            await self.world.start()
            for target in targets:
                self.ended(target, orders[target.job], self.true_end(target, _end_of(orders[target.job])))

        return self.step("end unseen", str(orders), deed())

    @by_chance
    def grow(self, chance: Random) -> None:
        """A job reports progress, or has one process more."""
        names, order, strike = self.running(), chance.choice(GROWTH), _strike(chance)
        if not names:
            return self.otherwise(chance)
        name = chance.choice(names)

        async def deed() -> None:
            target = self.target(name)
            await self.world.amid(strike, target.book.order(target.attempt, order), target.shim)
            self.true_end(target, End())
            if order.startswith("progress"):
                self.jobs[name].said_progress = int(order.split()[1])

        return self.step("grow", f"{name}: {order}", deed(), strike)

    @by_chance
    def kill_part(self, chance: Random) -> None:
        """SIGKILL to the main process, its shim, both, or whatever else the job has."""
        names, strike = self.running(), _strike(chance)
        if not names:
            return self.otherwise(chance)
        name, part = chance.choice(names), chance.choice(("main", "shim", "shim and main", "others"))

        async def deed() -> None:
            target = self.target(name)
            if "shim" in part:
                await self.world.strike("shim", target.shim)
            if part == "others":
                others = [member.process for member in target.book.living() if member.role != "main"]
                target.book.killed.update(others)
                for other in others:
                    kill(other)
            await self.world.amid(strike, asyncio.sleep(0), target.shim)
            end = self.true_end(target, End(signal=SIGKILL))
            if "main" in part:
                main = target.book.main(target.attempt)
                assert main is not None
                kill(main.process)
                self.ended(target, (), end)

        return self.step("kill part", f"{part} of {name}", deed(), strike)

    @by_chance
    def kill_newborn(self, chance: Random) -> None:
        """SIGKILL to a shim that is only just starting its job."""
        names, client, delay = self.startable(), _client(chance), chance.randint(0, 60)
        if not names:
            return self.otherwise(chance)
        name = chance.choice(names)

        async def deed() -> None:
            before, number = self.target(name), self.world.newest(name) + 1
            folder = self.world.rig.folder(name, number)
            asking = asyncio.ensure_future(self.request(before, "start", client, CALM))
            shim = await until(lambda: find_shim(folder), within=PATIENCE_S, what="a shim")
            await asyncio.sleep(delay / 1000)
            await self.world.strike("shim", shim)
            await asking
            self.model.start(name)
            self.model.settle({name})
            # A shim that waited for an attempt and did not take it is replaced; else that was the attempt.
            over = partial(self.both.is_over, name, number)
            await patiently(lambda: claimed(folder) or over(), "a claim, or the end")
            claim, begun = read_claim(folder), read_started(folder)
            if claim is not None and claim.process != shim:
                return
            if begun is None:
                self.model.ended(name, End(), begun=False)
                return
            main = begun.process
            self.both.unwatched.add((name, number))
            await patiently(lambda: not alive(main) or before.book.main(number), "begin or end")
            if not alive(main):
                self.model.ended(name, End())

        return self.step("kill newborn", f"shim of {name} by {client}, {delay} ms old", deed())

    @by_chance
    def start_late(self, chance: Random) -> None:
        """A shim that comes to its attempt when the agent that gave it is dead and the next one has given it up."""
        names, client = self.startable(), _client(chance)
        if not names or chance.random() < 0.5:
            return self.otherwise(chance)
        name = chance.choice(names)

        async def deed() -> None:
            before, number = self.target(name), self.world.newest(name) + 1
            spares = self.world.spare_shims()
            for spare in spares:
                send(spare, SIGSTOP)
            asking = asyncio.ensure_future(self.request(before, "start", client, CALM))
            await until(lambda: self.both.statuses()[name].attempt >= number, within=PATIENCE_S, what="an attempt")
            await self.world.strike("agent")
            await patiently(lambda: claimed(self.world.rig.folder(name, number)), "a claim")
            for spare in spares:
                send(spare, SIGCONT)
            await asking
            self.model.start(name)

        return self.step("start late", f"{name} by {client}", deed())

    def otherwise(self, chance: Random) -> None:
        """Something that can be done now."""
        steps: list[Callable[..., None]] = [self.ask_to_start if self.jobs else self.change_plan]
        if self.running():
            steps = [self.end, self.grow, self.kill_part, self.ask_to_stop]
        chance.choice(steps)(seed=chance.getrandbits(32))


def _client(chance: Random) -> str:
    return chance.choice(("alice", "bob"))


def _strike(chance: Random) -> Strike:
    """About one in six strikes."""
    return Strike(chance.choice(VICTIMS), chance.choice((0, 1, 3, 10, 30, 100))) if chance.random() < 0.16 else CALM


def _end_of(orders: tuple[str, ...]) -> End:
    word, number = orders[-1].split()
    return End(int(number)) if word == "exit" else End(signal=int(number))
