"""The servers of a run: who is there, who has a free slot, and whose prompts go to the others.

A partition's ``concurrency`` is what one server is given of it: with a second server twice as many prompts are asked
at once. Partitions that run in turn share a server by parts of it: one request takes 1/concurrency, so that a tail of
3 of 150 leaves 31 of the next partition's 32 slots free. A server that says how many requests it runs at once
(``max_running_requests``) is given no more than that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Final, Protocol

from pipeline.generate.adapt import Slots, follow, within
from pipeline.generate.gate import Gate
from pipeline.generate.outcome import Generated, Load, RunError
from pipeline.generate.poison import Turns
from pipeline.generate.prompts import Prompt
from pipeline.generate.settings import Sampling, Settings

WINDOW_S: Final = 60.0
PATIENCE_S: Final = 3600.0
"""A suspect waits so long for the server that went down under it, which is empty when it is back."""


class Engine(Protocol):
    """One server as a client sees it. Only ``generate`` raises: RefusedError or TroubleError."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling, label: str) -> Generated: ...
    async def healthy(self) -> bool: ...
    async def model_path(self) -> str | None: ...
    async def load(self) -> Load | None: ...
    async def room(self) -> int | None: ...
    async def close(self) -> None: ...


class Server:
    """One server: whether it is there, and what it was given."""

    def __init__(self, url: str, engine: Engine, fleet: Fleet) -> None:
        self.url = url
        self.engine = engine
        self.gate = Gate(engine.healthy, welcome=lambda: fleet.welcome(self), opened=fleet.opened)
        self.turns = Turns()
        self.seated: Counter[str] = Counter()  # by partition
        self.room: int | None = None  # requests that it runs at once
        self.slots: Slots | None = None  # where concurrency follows the server
        self.wrong = ""  # why it is left out
        self.load: Load | None = None
        self._recent: deque[tuple[float, int]] = deque()  # (when answered, tokens)

    @property
    def there(self) -> bool:
        return self.gate.closed_at is None

    @property
    def name(self) -> str:
        return self.url.split("://", 1)[-1].rstrip("/")

    def answered(self, tokens: int) -> None:
        self._recent.append((time.monotonic(), tokens))

    def tok_s(self, since: float) -> float:
        """Tokens a second over the last minute, or since the run began."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        return sum(tokens for _, tokens in self._recent) / max(min(WINDOW_S, now - since), 1.0)


class Fleet:
    """All servers of a run. ``seat`` is how a prompt gets one."""

    def __init__(self, settings: Settings, engines: dict[str, Engine]) -> None:
        self._settings = settings
        self._limits = {one.name: one.concurrency for one in settings.partitions}
        limits = self._limits.values()
        self._most = sum(limits) if settings.side_by_side else max(limits)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._began = time.monotonic()
        self.arrived = asyncio.Event()  # the first server was there
        self.servers = [Server(url, engine, self) for url, engine in engines.items()]

    async def close(self) -> None:
        for server in self.servers:
            await server.engine.close()

    @property
    def there(self) -> list[Server]:
        return [server for server in self.servers if server.there]

    @property
    def losses(self) -> int:
        return sum(server.gate.losses for server in self.servers)

    @property
    def suspects(self) -> list[str]:
        return [key for server in self.servers for key in server.turns.suspects]

    @property
    def asked_alone(self) -> list[str]:
        return [server.turns.asked_alone for server in self.servers if server.turns.asked_alone]

    # --- Who is there ---------------------------------------------------------------------------------------------

    async def welcome(self, server: Server) -> bool:
        """Whether a server that answers is one of the run. Raises RunError where none can be."""
        planned = self._settings.model_path
        if planned is not None:
            found = await server.engine.model_path()
            if found is None and not await server.engine.healthy():
                return False
            server.wrong = "" if found == planned else f"serves {found or 'an unknown model'}"
            if server.wrong and all(one.wrong for one in self.servers):
                wrong = ", ".join(f"{one.url} {one.wrong}" for one in self.servers)
                raise RunError(f"{wrong}, --model-path is {planned}")
            if server.wrong:
                return False
        server.room = await server.engine.room()
        if self._settings.adaptive:
            most = min(self._most, server.room or self._most)
            slots = server.slots or Slots(most, self._settings.adaptive, most)
            server.slots = replace(within(slots, self._settings.adaptive, most), retracted=None)
        return True

    def opened(self) -> None:
        """A server is there."""
        self.arrived.set()
        self.wake()

    async def look(self) -> Load | None:
        """Ask every server how it does; the sum, or None where one that is there does not say."""
        there = self.there
        loads = await asyncio.gather(*(server.engine.load() for server in there))
        for server, load in zip(there, loads, strict=True):
            server.load = load
            if server.slots is not None and load is not None:
                server.slots = follow(server.slots, load)
        self.wake()
        known = [load for load in loads if load is not None]
        busy = [load for server, load in zip(there, loads, strict=True) if load is not None or server.seated.total()]
        if not known or len(known) < len(busy):
            return None
        return Load(sum(load.running for load in known), sum(load.tok_s for load in known))

    # --- Who has a slot -------------------------------------------------------------------------------------------

    def bound(self, server: Server) -> int:
        """The most requests it is given at once, whatever their partition."""
        bounds = [self._most, server.room or self._most]
        return min(*bounds, server.slots.now if server.slots is not None else self._most)

    @contextlib.asynccontextmanager
    async def seat(self, prompt: Prompt, *, suspect: bool) -> AsyncIterator[Server]:
        """Wait for a server with a free slot and hold it: the one with the least to do."""
        server = await self._find(prompt, suspect=suspect)
        server.seated[prompt.partition] += 1
        if suspect:
            for other in self.servers:
                other.turns.clear(prompt.key)
            server.turns.suspect(prompt.key)
        self.wake()  # there may be a slot for the next one too
        try:
            yield server
        finally:
            server.seated[prompt.partition] -= 1
            self.wake()

    def clear(self, key: str) -> None:
        """The prompt is settled: nobody has to stand back for it."""
        for server in self.servers:
            server.turns.clear(key)
        self.wake()

    def wake(self) -> None:
        """Let the first of those who wait for a slot look again; it wakes the next."""
        for partition, queue in self._waiting.items():
            if partition and self._free(partition) is None:
                continue
            for woken in tuple(queue)[: 1 if partition else len(queue)]:  # suspects wait for a server each of their own
                queue.remove(woken)
                if not woken.done():
                    woken.set_result(None)

    async def _find(self, prompt: Prompt, *, suspect: bool) -> Server:
        queue = self._waiting.setdefault("" if suspect else prompt.partition, deque())
        server = None if queue and not suspect else self._choose(prompt, suspect=suspect)
        woken: asyncio.Future[None] | None = None
        while server is None:
            first, woken = woken is not None, asyncio.get_running_loop().create_future()
            if first:
                queue.appendleft(woken)
            else:
                queue.append(woken)
            try:
                await woken
            except asyncio.CancelledError:
                with contextlib.suppress(ValueError):
                    queue.remove(woken)
                self.wake()  # the slot it was woken for is somebody else's
                raise
            server = self._choose(prompt, suspect=suspect)
        return server

    def _choose(self, prompt: Prompt, *, suspect: bool) -> Server | None:
        return self._empty(prompt.key) if suspect else self._free(prompt.partition)

    def _free(self, partition: str) -> Server | None:
        fit = [one for one in self.servers if one.there and not one.turns.suspects and self._fits(one, partition)]
        return min(fit, key=lambda one: one.seated.total() / self.bound(one), default=None)

    def _fits(self, server: Server, partition: str) -> bool:
        if server.seated.total() >= self.bound(server):
            return False
        limit = self._limits[partition]
        if self._settings.side_by_side:
            return server.seated[partition] < limit
        taken = sum(count / self._limits[name] for name, count in server.seated.items())
        return taken + 1 / limit <= 1 + 1e-9

    def _empty(self, key: str) -> Server | None:
        """For a suspect, which goes alone: the server that went down under it, or the one with the least to do."""
        its = [one for one in self.servers if key in one.turns.suspects]
        now = time.monotonic()
        patient = [one for one in its if one.gate.closed_at is None or now - one.gate.closed_at < PATIENCE_S]
        return min(
            (one for one in patient or self.servers if one.there),
            key=lambda one: (not one.turns.suspects, one.seated.total()),
            default=None,
        )

    # --- What is shown --------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, float]:
        """Figures of the progress: of every server where there are several."""
        shown: dict[str, float] = {}
        if any(server.slots is not None for server in self.servers):
            shown["slots"] = float(sum(self.bound(server) for server in self.there))
        if len(self.servers) > 1:
            shown["servers"] = float(len(self.servers))
            shown["servers_there"] = float(len(self.there))
            for server in self.servers:
                shown[f"tok_s: {server.name}"] = server.tok_s(self._began)
                shown[f"in_flight: {server.name}"] = float(server.seated.total())
                shown[f"losses: {server.name}"] = float(server.gate.losses)
                if server.slots is not None:
                    shown[f"slots: {server.name}"] = float(server.slots.now)
        return shown

    def notes(self) -> list[str]:
        """Which servers are away, and what that does to the run."""
        found = [f"{server.name} is left out: {server.wrong}" for server in self.servers if server.wrong]
        away = [server for server in self.servers if not server.there and not server.wrong]
        if away and not self.there:
            first = max(away, key=lambda server: server.gate.closed_at or 0.0)
            found.append(f"{_names(away, len(self.servers))} {_since(first)}, waits for it")
        elif away:
            found += [f"{server.name} {_since(server)}, the others go on" for server in away]
        return found


def _names(servers: Iterable[Server], of: int) -> str:
    return "server" if of == 1 else ", ".join(server.name for server in servers)


def _since(server: Server) -> str:
    for_s = time.monotonic() - (server.gate.closed_at or 0.0)
    return f"{'gone' if server.gate.losses else 'not there yet'} for {for_s:.0f} s"
