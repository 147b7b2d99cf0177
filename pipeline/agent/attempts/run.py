"""One attempt of a job as the agent sees it: spawning its shim, adopting one, following it to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from pipeline.agent.attempts import records, remains
from pipeline.agent.attempts.attempt_files import STARTED, replace
from pipeline.agent.attempts.environment import mask
from pipeline.agent.attempts.identity import Process, alive, identify, open_pidfd, read_stat, send
from pipeline.agent.host import cgroups
from pipeline.protocol import JobSpec

POLL_S: Final = 0.02
TORN_S: Final = 1.0
LEFT_SHOWN: Final = 10
CLAIM_PATIENCE_S: Final = 2.0
CUT_OFF: Final = "the agent ended before the job was started"
SHIM: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("shim.py")))


@dataclass
class Run:
    """An attempt that may still have processes. Changed by the supervisor alone."""

    job: str
    number: int
    release: str
    folder: Path
    grace_s: float = 15.0
    shim: Process | None = None
    main: Process | None = None
    stop_by: str = ""  # who asked for the end
    stop_at: float | None = None  # when, wall time
    kill: bool = False
    again: bool = False  # start anew when it has ended
    condemned: str = ""  # why the agent itself ends it for good
    unhealthy: str = ""  # why the agent itself ends it, to be started again as after a crash
    began: float | None = None  # monotonic; when its process was made, in this boot
    ready_at: float | None = None  # monotonic; when a server first answered
    oom_counter: str = ""  # the file that counts the kernel's kills for memory where it runs
    cgroup: str = ""  # the folder of its own memory cgroup, where it has one
    seen: bool = False  # its process was alive when this agent first knew of it
    watched: bool = False  # what looks at its process has been started
    peak: int = 0
    known: frozenset[Process] = frozenset()  # its tree as it was last seen below its shim
    left_over: dict[Process, str] = field(default_factory=dict)  # what the agent ended after the main process
    ending: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def sentence(self) -> str:
        """Why the agent itself ends it; "" where it does not."""
        return self.condemned or self.unhealthy

    @cached_property
    def log(self) -> Path:
        return self.folder / "log"

    @cached_property
    def progress(self) -> Path:
        return self.folder / "progress.jsonl"

    def ask(self, by: str, *, again: bool = False, kill: bool = False) -> None:
        """Note who wants it to end, and whether it is to start anew or to end at once; ``end`` does it."""
        self.stop_by, self.stop_at = by, time.time()
        self.again, self.kill = again, self.kill or kill

    def end(self, *, kill: bool = False) -> None:
        """End the tree: TERM, grace, KILL, or KILL at once. Through the shim while there is one."""
        self.kill |= kill
        if self.shim is not None and send(self.shim, signal.SIGUSR1 if self.kill else signal.SIGTERM):
            return
        if self.shim is None and self.main is None:
            return  # not spawned yet: whoever spawns looks at stop_by
        task = asyncio.get_running_loop().create_task(remains.end(self, 0.0 if self.kill else self.grace_s))
        self.ending.add(task)
        task.add_done_callback(self.ending.discard)

    def allow(self, grace_s: float) -> None:
        """Change the time between TERM and KILL, for its shim too."""
        self.grace_s = grace_s
        replace(str(self.folder), "grace", str(grace_s).encode())

    def take(self, record: records.Started) -> None:
        """The job's process is known."""
        self.main, self.began = record.process, record.monotonic
        self.oom_counter, self.cgroup = record.oom_counter, record.cgroup
        self.seen = alive(record.process)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: by its exit record, without its job having started, or unseen."""

    exit: records.Exit | None = None
    void: str = ""  # the job never started, and why
    abandoned: bool = False  # never started because an agent died: the attempt does not count
    shim_lost: bool = False
    torn: bool = False  # there is an exit record, but it cannot be read
    left_over: tuple[str, ...] = ()  # what was ended after the main process, where there was no shim
    container: str = ""  # what ended everything: "container restarted" or "host rebooted"


def prepare(run: Run, spec: JobSpec, environment: Mapping[str, str], cwd: Path, release: Path) -> dict[str, str]:
    """Write the attempt's ``spec.json``; the environment of its shim, the only place that holds the secrets' values."""
    run.folder.mkdir(parents=True, exist_ok=True)
    shown = mask(environment, spec.secrets)
    hidden = sorted(name for name, value in environment.items() if shown[name] != value)
    body = {
        "job": run.job,
        "number": run.number,
        "argv": [part.replace("{release}", str(release)) for part in spec.argv],
        "env": {name: value for name, value in environment.items() if name not in hidden},
        "secrets": hidden,
        "cwd": str(cwd),
        "log": str(run.log),
        "grace_s": spec.stop_grace_s,
        "oom_score_adj": spec.oom_score_adj,
        **cgroups.place(run.folder),
    }
    # Not synced: nothing is started from it after a crash of the machine, and each restart of a job waits for this.
    fresh = run.folder / ".spec.json"
    fresh.write_bytes(msgspec.json.encode(body))
    fresh.rename(run.folder / "spec.json")
    return {name: environment[name] for name in hidden}


def spawn(run: Run, secrets: Mapping[str, str]) -> int:
    """Start the shim in a session of its own; a handle that tells what became of the start."""
    read, write = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [*SHIM, str(run.folder)],
            dict(secrets),
            setsid=True,
            setsigmask=(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, write, 1),
            ],
        )
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    run.shim = identify(pid)
    return read


async def readable(handle: int) -> None:
    """Return when there is something to be read from ``handle``, or its other end has closed."""
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(handle, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(handle)


async def gone(process: Process) -> None:
    """Return when exactly this process has ended; one that is a child of ours is collected."""
    handle = open_pidfd(process)
    if handle is not None:
        try:
            await readable(handle)
        finally:
            os.close(handle)
    found = read_stat(process.pid)
    if found is not None and found[3] == process.start and found[1] == os.getpid():
        os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended


async def follow(run: Run, handle: int | None, started: Callable[[records.Started], None]) -> Ending:
    """Follow an attempt whose shim is known to its end; ``started`` is called once the job's process is known."""
    shim = run.shim
    if shim is not None:
        if handle is not None and (said := await _heard(handle)) not in ("", STARTED):
            await gone(shim)
            run.shim = None
            return Ending(void=said)
        while (record := await remains.begun(run)) is None and alive(shim):  # noqa: ASYNC110 - the shim writes it
            await asyncio.sleep(TORN_S if records.began(run.folder) else POLL_S)
        if record is not None:
            run.take(record)
            started(record)
        await gone(shim)
    return await after_shim(run, started)


async def _heard(handle: int) -> str:
    """What a shim says of its start; "" when it ended without a word."""
    try:
        await readable(handle)
        return os.read(handle, 1000).decode(errors="replace")
    finally:
        os.close(handle)


async def after_shim(run: Run, started: Callable[[records.Started], None]) -> Ending:
    """What became of an attempt whose shim has ended. A job that outlived its shim is watched until it ends too."""
    run.shim = None
    record = records.read_exit(run.folder)
    if record is not None:
        return Ending(exit=record)
    begun = await remains.begun(run)
    if begun is None and run.main is None and not records.began(run.folder):
        return Ending(void="its shim ended before the job started")
    if begun is not None and run.main is None:
        run.take(begun)
        started(begun)
    if run.stop_by or run.sentence:
        run.end()
    if run.main is not None:
        await gone(run.main)
    await remains.end(run, run.grace_s)
    return _unrecorded(run)


def _unrecorded(run: Run) -> Ending:
    """The end of a job of which no exit record can be read."""
    torn = os.path.lexists(run.folder / "exit.json")
    return Ending(shim_lost=True, torn=torn, left_over=tuple(run.left_over.values())[:LEFT_SHOWN])


async def adopt(run: Run, me: Process, container: str, started: Callable[[records.Started], None]) -> Ending:
    """Follow an attempt that an earlier agent journaled, from whatever its files and processes say."""
    record, begun = records.read_exit(run.folder), records.read_started(run.folder)
    if record is not None:
        if begun is not None:
            run.take(begun)
        return Ending(exit=record)
    claim = records.read_claim(run.folder)
    if claim is None and not records.began(run.folder):
        claim = await _settle_claim(run, me, container)
        if claim is None:
            return Ending(void=CUT_OFF, abandoned=True)
    if claim is None:  # the job ran, but of its shim nothing can be read
        return await _unclaimed(run, started)
    if claim.owner != "shim":
        return Ending(void=CUT_OFF, abandoned=True)
    if claim.container != container:
        same_boot = claim.container.split(":")[0] == container.split(":")[0]
        return Ending(container="container restarted" if same_boot else "host rebooted")
    if alive(claim.process):
        run.shim = claim.process
        return await follow(run, None, started)
    return await after_shim(run, started)


async def _unclaimed(run: Run, started: Callable[[records.Started], None]) -> Ending:
    """Follow a job that was started, but whose claim cannot be read."""
    run.shim = await asyncio.to_thread(records.find_shim, run.folder)
    if run.shim is not None:
        return await follow(run, None, started)
    begun = await remains.begun(run)
    # In which container it began is not known: a number and a time that fit may be a stranger's.
    if begun is not None and begun.process in await asyncio.to_thread(remains.find, run):
        return await after_shim(run, started)
    return _unrecorded(run)


async def _settle_claim(run: Run, me: Process, container: str) -> records.Claim | None:
    """Claim an unclaimed attempt as abandoned (None), or wait for the claim that a shim is about to finish."""
    if not records.claimed(run.folder) and records.abandon(run.folder, me, container):
        return None
    for _ in range(int(CLAIM_PATIENCE_S / POLL_S)):
        claim = records.read_claim(run.folder)
        if claim is not None:
            return claim
        await asyncio.sleep(POLL_S)
    # The claim is not whole: its shim died, or hangs, while writing it. Nothing of the job has run.
    shim = await asyncio.to_thread(records.find_shim, run.folder)
    if shim is not None:
        send(shim, signal.SIGKILL)
        await gone(shim)
    return None
