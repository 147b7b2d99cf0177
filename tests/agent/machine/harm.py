"""What befalls jobs: they end, grow, and lose processes or the shim."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Final

from pipeline.agent.attempts.identity import alive, send
from pipeline.agent.attempts.records import claimed, find_shim, read_claim, read_started
from pipeline.protocol import JobSpec, Resources
from tests.agent.machine.book import PATIENCE_S, patiently
from tests.agent.machine.choices import any_client, any_strike, by_chance
from tests.agent.machine.model import End
from tests.agent.machine.walk import Walk
from tests.agent.machine.world import CALM, kill
from tests.agent.rig import until

DEEDS: Final = ("end", "end unseen", "grow", "kill part", "kill newborn", "start late")
GROWTH: Final = ("child", "escapee", "stubborn", "progress 5", "progress 0")
ENDS: Final = (
    ("exit 0",), ("exit 1",), ("exit 3",), ("exit 137",), ("signal 15",), ("signal 9",), ("signal 11",),
    ("result 5", "exit 0"), ("result 0", "exit 0"), ("result 0", "exit 3"), ("progress 7", "result 5", "exit 1"),
)  # fmt: skip


class Harm(Walk):
    """What jobs do and suffer."""

    @by_chance
    def end(self, chance: Random) -> None:
        names, orders, strike = self.running(), chance.choice(ENDS), any_strike(chance)
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
        names, order, strike = self.running(), chance.choice(GROWTH), any_strike(chance)
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
        names, strike = self.running(), any_strike(chance)
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
        (name, new), client = self.resting(chance), any_client(chance)
        delay = chance.randint(0, 60)

        async def deed() -> None:
            book, number = self.both.book(name), self.world.newest(name) + 1
            folder = self.world.rig.folder(name, number)
            starting = await self.begin(name, new, client)
            shim = await until(lambda: find_shim(folder), within=PATIENCE_S, what="a shim")
            await asyncio.sleep(delay / 1000)
            await self.world.strike("shim", shim)
            await starting
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
            await patiently(lambda: not alive(main) or book.main(number), "begin or end")
            if not alive(main):
                self.model.ended(name, End())

        return self.step("kill newborn", f"shim of {name} by {client}, {delay} ms old", deed())

    @by_chance
    def start_late(self, chance: Random) -> None:
        """A shim that comes to its attempt when the agent that gave it is dead and the next one has given it up."""
        (name, new), client = self.resting(chance), any_client(chance)
        delay = chance.choice((0, 10, 100))

        async def deed() -> None:
            book, number = self.both.book(name), self.world.newest(name) + 1
            folder, late = self.world.rig.folder(name, number), self.world.spare_shims()
            for shim in late:
                send(shim, SIGSTOP)
            starting = await self.begin(name, new, client)
            await until((folder / "spec.json").exists, within=PATIENCE_S, what="an attempt")
            if not late:
                late = [await until(lambda: find_shim(folder), within=PATIENCE_S, what="a shim")]
                send(late[0], SIGSTOP)
            await asyncio.sleep(delay / 1000)
            await self.world.strike("agent")

            def given_up() -> bool:
                return claimed(folder) or self.both.attempt(name) > number

            await patiently(given_up, "the next agent to give it up")
            for shim in late:
                send(shim, SIGCONT)
            await starting
            # What comes too late must not start anything; whatever does so all the same is in the book then.
            await patiently(lambda: not any(map(alive, late)) or book.main(number), "late shims to end")

        return self.step("start late", f"{name} by {client}, {delay} ms later", deed())

    def resting(self, chance: Random) -> tuple[str, JobSpec | None]:
        """A job that will run as soon as it is asked to; where there is none, one that has still to be planned."""
        names = self.startable()
        if names:
            return chance.choice(names), None
        new = replace(self.make(chance, []), resources=Resources(), autostart=False)
        return new.name, new

    async def begin(self, name: str, new: JobSpec | None, client: str) -> asyncio.Task[None]:
        """Ask for the start of a job that is ``resting``; the task is done when the agent has answered."""
        if new is not None:
            await self.put(client, [*(job.spec for job in self.jobs.values()), new], frozenset(), CALM)
            await patiently(lambda: name in self.both.statuses(), "the new job")

        async def ask() -> None:
            await self.request(self.target(name), "start", client, CALM)
            self.model.start(name)

        return asyncio.create_task(ask())


def _end_of(orders: tuple[str, ...]) -> End:
    word, number = orders[-1].split()
    return End(int(number)) if word == "exit" else End(signal=int(number))
