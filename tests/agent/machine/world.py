"""The real side of the machine: an agent that may be killed at any moment, its event stream, and jobs that obey."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import httpx
import msgspec

from pipeline.agent import launch, paths
from pipeline.agent.attempts.handover import SPARE
from pipeline.agent.attempts.identity import Process, alive, identify, send
from pipeline.agent.attempts.records import read_claim
from pipeline.protocol import ActionRequest, Event, JobDetail, JobStatus
from tests.agent.machine.book import PATIENCE_S, Book, patiently
from tests.agent.rig import RELEASE, ROOT, Rig, survivors, until

RETRY_S: Final = 0.05
OTHER_RELEASE: Final = "rel2"
PUPPET: Final = Path(__file__).with_name("puppet.py")

VICTIMS: Final = {
    "agent": 4, "agent twice": 2, "keeper": 2, "both": 2, "shim": 3, "spare shim": 2, "left": 1, "upgraded": 1
}  # fmt: skip
"""Who is struck, and how often beside the others: to leave and to upgrade in order take seconds."""
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Strike:
    """Somebody dies of SIGKILL, or the agent leaves in order, so many milliseconds after something was begun."""

    victim: str = ""
    after_ms: int = 0

    def __str__(self) -> str:
        return f", {self.victim} struck after {self.after_ms} ms" if self.victim else ""


CALM: Final = Strike()


class Follower:
    """A console's event stream: it asks from the last number it saw, whenever the connection breaks."""

    def __init__(self, rig: Rig) -> None:
        self.events: list[Event] = []
        self.statuses: dict[str, JobStatus] = {}
        self.fault = ""
        self._rig = rig
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while not self.fault:
            try:
                async for line in self._rig.stream(len(self.events)):
                    if line.event is not None:
                        self._take(line.event)
            except httpx.TransportError:
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                self.fault = f"the stream failed: {error!r}"
                raise

    def _take(self, event: Event) -> None:
        if event.seq != len(self.events) + 1:
            self.fault = f"event {event.seq} came after event {len(self.events)}"
        self.events.append(event)
        if event.status is not None:
            self.statuses[event.status.name] = event.status
        elif event.kind == "plan" and event.text.endswith(" is no longer in the plan"):
            del self.statuses[event.text.split()[0]]


class World:
    """One agent, two clients, and what may befall the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rig = Rig(folder / "work")
        (self.rig.workdir / "releases" / OTHER_RELEASE).symlink_to(ROOT)
        self.books = folder / "books"
        self.books.mkdir()
        self.clients = {
            "alice": self.rig.client,
            "bob": httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=str(self.rig.runtime / "agent.sock")),
                base_url="http://agent",
                timeout=20,
            ),
        }

    async def open(self) -> None:
        self.follower = Follower(self.rig)
        await self.start()

    async def close(self) -> None:
        await self.follower.close()
        await self.clients["bob"].aclose()
        await self.rig.close()

    def book(self, job: str) -> Book:
        return Book(self.books / job)

    def argv(self, job: str, *words: str) -> tuple[str, ...]:
        """The command of a job that obeys."""
        return (sys.executable, "-I", "-S", str(PUPPET), str(self.books / job), *words)

    # --- asking ---

    async def send(self, client: str, method: str, path: str, body: object) -> bytes:
        """Send a request until it is answered, however often the agent dies meanwhile."""
        data = msgspec.json.encode(body)

        async def answered() -> bytes | None:
            with contextlib.suppress(httpx.TransportError):
                answer = await self.clients[client].request(method, path, content=data)
                assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
                return answer.content
            return None

        answer: bytes = await patiently(answered, f"an answer to {path}")
        return answer

    async def detail(self, job: str) -> JobDetail:
        answer = await self.rig.client.get(f"/v1/jobs/{job}")
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=JobDetail)

    # --- harm ---

    async def amid(self, strike: Strike, deed: Awaitable[Answer], shim: Process | None = None) -> Answer:
        """Do something, and strike while it is being done; a spare shim, while it still waits for an attempt."""
        if strike.victim == "spare shim":
            for spare in self.spare_shims():
                kill(spare)
            return await deed
        doing = asyncio.ensure_future(deed)
        if strike.victim:
            await asyncio.sleep(strike.after_ms / 1000)
            await self.strike(strike.victim, shim, strike.after_ms)
        return await doing

    async def strike(self, victim: str, shim: Process | None = None, after_ms: int = 0) -> None:
        """Kill; where nobody is left who could start the agent again, do so."""
        agent, keeper = self.rig.holder("agent"), self.rig.holder("keeper")
        if victim == "shim":
            kill(shim)
            await patiently(lambda: shim is None or not alive(shim), "the shim to die")
        elif victim in ("agent", "agent twice"):
            kill(agent)
            if victim == "agent twice":
                again = await until(lambda: self._other("agent", agent), within=PATIENCE_S, what="the next agent")
                await asyncio.sleep(after_ms / 100)  # it takes most of a second to come up
                kill(again)
        elif victim == "keeper":
            kill(keeper)
        elif victim == "both":
            await self.kill_both()
            await self.start()
        elif victim == "left":
            await self.leave()
        elif victim == "upgraded":
            await self.upgrade()

    async def kill_both(self) -> None:
        """Kill agent and keeper in one moment: neither sees the other's death."""
        victims = [self.rig.holder("keeper"), self.rig.holder("agent")]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for victim in victims:
                if victim is not None:
                    send(victim, number)
        await patiently(lambda: not any(map(self.rig.holder, ("agent", "keeper"))), "both to die")

    def _other(self, name: str, old: Process | None) -> Process | None:
        found = self.rig.holder(name)
        return found if found != old else None

    async def start(self) -> None:
        """What ``start`` does: bring up keeper and agent, and wait until it answers."""
        launch.spawn_keeper(self.rig.workdir, self.rig.runtime)
        await patiently(self.whole, "the agent to answer")

    async def leave(self) -> None:
        """Agent and keeper end as they are told to, and are started again."""
        for command in ("stop", "start"):
            said = await asyncio.to_thread(self.rig.call, command)
            assert said["ok"], said

    async def upgrade(self) -> None:
        """The agent goes on as another release."""
        before = await self.rig.state()
        release = OTHER_RELEASE if before.agent.release == RELEASE else RELEASE
        body = ActionRequest("alice", uuid.uuid4().hex)
        await self.send("alice", "POST", f"/v1/upgrade?release={release}", body)

        await patiently(lambda: self.whole(release), "the other release")

    async def whole(self, release: str = "") -> bool:
        """Agent and keeper are there."""
        with contextlib.suppress(httpx.TransportError):
            agent = (await self.rig.state()).agent
            return agent.keeper and release in ("", agent.release)
        return False

    # --- looking ---

    def shim(self, job: str, attempt: int) -> Process | None:
        """The living shim of an attempt."""
        claim = read_claim(self.rig.folder(job, attempt))
        return claim.process if claim is not None and claim.owner == "shim" and alive(claim.process) else None

    def newest(self, job: str) -> int:
        """The number of a job's last attempt, as its folders tell: a job that left the plan keeps them."""
        folder = self.rig.folder(job).parent
        return max((int(entry.name) for entry in folder.iterdir()), default=0) if folder.exists() else 0

    def spare_shims(self) -> list[Process]:
        """Shims that wait for an attempt; one that has an attempt works in its folder."""
        found = []
        for pid in survivors(self.rig.workdir):
            process, folder = identify(pid), Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                spare = SPARE.encode() in (folder / "cmdline").read_bytes()
                if spare and process is not None and not _inside(folder / "cwd", self.rig.workdir):
                    found.append(process)
        return found

    def left_behind(self, prefix: str) -> list[int]:
        """Processes, shims too, that carry the mark of an attempt of jobs whose names begin so."""
        return survivors(Path(paths.jobs_dir(self.rig.workdir), prefix))


def _inside(link: Path, folder: Path) -> bool:
    return link.readlink().is_relative_to(folder)


def kill(process: Process | None) -> None:
    if process is not None:
        send(process, signal.SIGKILL)
