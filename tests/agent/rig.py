"""A real agent in a work directory of its own: started, asked over its socket, killed, and taken down at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec

from pipeline.agent import launch, locks, paths
from pipeline.agent.attempts.identity import Process, alive, read_stat, send
from pipeline.agent.attempts.records import Exit, read_exit
from pipeline.agent.host import cgroups
from pipeline.protocol import (
    ActionReply,
    ActionRequest,
    ApplyReply,
    ApplyRequest,
    DiskPolicy,
    JobSample,
    JobSpec,
    JobState,
    JobStatus,
    Plan,
    RestartPolicy,
    State,
    StreamLine,
)

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "rel1"

NEVER = RestartPolicy(when="never")


async def until(look: Callable[[], Any], *, within: float = 15.0, every: float = 0.01, what: str = "") -> Any:
    """The first true value that ``look`` gives, awaited if need be; fails after ``within`` seconds."""
    deadline = time.monotonic() + within
    while True:
        found = look()
        value = await found if isinstance(found, Awaitable) else found
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or look} (last: {value!r})")
        await asyncio.sleep(every)


def shell(name: str, script: str, **fields: Any) -> JobSpec:
    """A job that is a shell script. Restarted by nobody unless the test says so."""
    fields = {"stage": "demo", "restart": NEVER, "stop_grace_s": 2.0, **fields}
    return JobSpec(name=name, argv=("/bin/sh", "-c", script), **fields)


def exists(path: str | Path) -> bool:
    return Path(path).exists()


def touch(path: str | Path) -> None:
    Path(path).touch()


def make_workdir(folder: Path) -> Path:
    """A work directory with this tree as its release."""
    (folder / "releases").mkdir(parents=True)
    (folder / "releases" / RELEASE).symlink_to(ROOT)
    paths.set_current_release(folder, RELEASE)
    return folder


class Rig:
    """The agent of one work directory."""

    def __init__(self, folder: Path) -> None:
        self.workdir = make_workdir(folder)
        self.runtime = Path(paths.runtime_dir(self.workdir))
        self.client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.runtime / "agent.sock")),
            base_url="http://agent",
            timeout=20,
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "pipeline.agent", *arguments, "--workdir", str(self.workdir)]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": paths.release_dir(self.workdir, RELEASE)}

    def call(self, *arguments: str, text: str = "") -> dict[str, Any]:
        """Run a command of the agent; the JSON it prints."""
        done = subprocess.run(
            self.command(*arguments), env=self.environment, input=text, capture_output=True, text=True, timeout=60
        )
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    async def start(self) -> int:
        """Start keeper and agent unless they run; the agent's pid once it answers."""
        launch.spawn_keeper(self.workdir, self.runtime)

        async def answers() -> int | None:
            with contextlib.suppress(httpx.TransportError):
                return (await self.state()).agent.pid
            return None

        return int(await until(answers, what=f"an agent ({self.log()})"))

    def log(self) -> str:
        path = self.runtime / "agent.log"
        return path.read_text() if path.exists() else ""

    def holder(self, name: str) -> Process | None:
        return locks.holder(str(self.runtime / f"{name}.lock"))

    async def state(self) -> State:
        answer = await self.client.get("/v1/state")
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=State)

    async def apply(
        self,
        *jobs: JobSpec,
        confirm: tuple[str, ...] = (),
        dry_run: bool = False,
        disk: DiskPolicy = DiskPolicy(),  # noqa: B008 - frozen
    ) -> ApplyReply:
        request = ApplyRequest(Plan("test", RELEASE, jobs, disk=disk), "tester", confirm, dry_run)
        answer = await self.client.put("/v1/plan", content=msgspec.json.encode(request))
        return msgspec.json.decode(answer.content, type=ApplyReply)

    async def act(self, name: str, action: str, *, request: str = "", reason: str = "") -> ActionReply:
        body = ActionRequest("tester", request or uuid.uuid4().hex, reason)
        answer = await self.client.post(f"/v1/jobs/{name}/{action}", content=msgspec.json.encode(body))
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=ActionReply)

    async def post(self, path: str) -> ActionReply:
        body = ActionRequest("tester", uuid.uuid4().hex)
        answer = await self.client.post(path, content=msgspec.json.encode(body))
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=ActionReply)

    async def status(self, name: str) -> JobStatus:
        return (await self.state()).jobs[name]

    async def heard(self, name: str) -> JobStatus | None:
        """A job's status; None while no agent answers."""
        with contextlib.suppress(httpx.TransportError):
            return await self.status(name)
        return None

    async def heard_all(self) -> dict[str, JobSample]:
        """The newest figures of all jobs; none while no agent answers."""
        with contextlib.suppress(httpx.TransportError):
            return (await self.state()).beat.jobs
        return {}

    async def reach(self, name: str, *states: JobState, within: float = 15.0) -> JobStatus:
        """Wait until a job is in one of the states."""

        async def look() -> JobStatus | None:
            status = await self.heard(name)
            return status if status is not None and status.state in states else None

        found: JobStatus = await until(look, within=within, what=f"{name} in {states}")
        return found

    async def replaced(self, name: str, old: Process, *, within: float = 10.0) -> Process:
        """Wait until another process than ``old`` is agent or keeper."""

        def look() -> Process | None:
            found = self.holder(name)
            return found if found != old else None

        found: Process = await until(look, within=within, what=f"a new {name}")
        return found

    async def attempted(self, name: str, number: int) -> JobStatus:
        """Wait until a job is in attempt ``number``."""

        async def look() -> JobStatus | None:
            status = await self.heard(name)
            return status if status is not None and status.attempt == number else None

        found: JobStatus = await until(look, what=f"attempt {number} of {name}")
        return found

    async def says(self, name: str, text: str) -> JobStatus:
        """Wait until a job's reason holds a text."""

        async def look() -> JobStatus | None:
            status = await self.heard(name)
            return status if status is not None and text in status.reason else None

        found: JobStatus = await until(look, what=f"{name}: {text}")
        return found

    async def recorded(self, name: str, attempt: int = 1) -> Exit:
        """Wait for the exit record of an attempt, agent or not."""
        found: Exit = await until(lambda: read_exit(self.folder(name, attempt)), what=f"exit record of {name}")
        return found

    async def stream(self, since: int) -> AsyncIterator[StreamLine]:
        async with self.client.stream("GET", "/v1/events", params={"since": since}) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                yield msgspec.json.decode(line, type=StreamLine)

    def folder(self, name: str, attempt: int = 1) -> Path:
        return Path(paths.attempt_dir(self.workdir, name, attempt))

    async def close(self) -> None:
        """Kill everything this rig has started."""
        await self.client.aclose()
        await self.end()
        shutil.rmtree(self.runtime, ignore_errors=True)

    async def end(self) -> None:
        """Kill all processes of the work directory, the keeper first: it would start the agent again."""
        for name in ("keeper", "agent"):
            process = self.holder(name)
            if process is not None:
                send(process, signal.SIGKILL)
                await until(partial(_dead, process))
        # Whatever a test left behind carries its work directory in its environment or command line.
        # One that was being born at a look is seen by one of the next.
        quiet = 0
        while quiet < 5:
            pids = survivors(self.workdir)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            quiet = 0 if pids else quiet + 1
            await asyncio.sleep(0.02)
        # Killed shims leave their jobs' cgroups.
        name = cgroups.place(self.folder("x"))["cgroup"]
        if name:
            for left in Path(name).parent.glob(f"{Path(name).name.removesuffix('x-1')}*"):
                await until(partial(_removed, left))


def _removed(cgroup: Path) -> bool:
    with contextlib.suppress(OSError):
        cgroup.rmdir()
    return not cgroup.exists()


def _dead(process: Process) -> bool:
    return not alive(process)


def survivors(workdir: Path) -> list[int]:
    """Pids of all processes that carry the work directory's path."""
    mark = os.fsencode(workdir)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                stat = read_stat(int(entry.name))
                if stat is None or stat[0] in "ZX":
                    continue
                if mark in (entry / "cmdline").read_bytes() or mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found
