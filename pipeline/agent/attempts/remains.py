"""A job that has no shim any more: what lives of it, and how that is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.agent.attempts import job_cgroup, records
from pipeline.agent.attempts.identity import Process, read_stat, send
from pipeline.progress import PROGRESS_VARIABLE

if TYPE_CHECKING:
    from pipeline.agent.attempts.run import Run

RESCAN_S: Final = 0.05


async def end(run: Run, grace_s: float) -> None:
    """TERM, grace, KILL, until nothing of the job is found: its main process first, then what that left behind."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    told: set[Process] = set()
    while found := await asyncio.to_thread(find, run):
        late = loop.time() >= deadline
        for process in found & {run.main} if run.main in found and not late else found:
            if process != run.main:
                run.left_over.setdefault(process, f"{process.pid} {_name(process.pid)}")
            if late or process not in told:
                told.add(process)
                send(process, signal.SIGKILL if late else signal.SIGTERM)
        await asyncio.sleep(RESCAN_S)


def find(run: Run) -> set[Process]:
    """What lives of a job, by one pass over /proc.

    Its main process and all that was seen below its shim, the main process's session, its cgroup where it has one,
    whatever has the attempt's mark in its environment, and all below these.
    """
    living: dict[Process, tuple[int, int]] = {}  # parent and session
    for name in os.listdir("/proc"):  # noqa: PTH208
        stat = read_stat(int(name)) if name.isdigit() else None
        if stat is not None and stat[0] not in "ZX" and int(name) != os.getpid():
            living[Process(int(name), stat[3])] = stat[1], stat[2]
    mark = f"{PROGRESS_VARIABLE}={run.progress}".encode()
    main, session = run.main, _session(run)
    known = run.known | {main} if main is not None else run.known
    members = job_cgroup.members(run.cgroup)
    found = {
        process
        for process, (_, its_session) in living.items()
        if process in known
        or process.pid in members
        or (main is not None and its_session == session and process.start >= main.start)
        or mark in _environment(process.pid)
    }
    below = found
    while below:
        parents = {process.pid for process in below}
        below = {process for process, (parent, _) in living.items() if parent in parents} - found
        found |= below
    return found


def _session(run: Run) -> int | None:
    """The number of the job's session while it is certain whose it is.

    A session's number is free again when nothing of the session is left: then a stranger may have it. It is the job's
    while the job's process lives, and for what this agent saw it leave behind.
    """
    if run.main is None or not run.seen:
        return None
    leader = read_stat(run.main.pid)
    return run.main.pid if leader is None or leader[3] == run.main.start else None


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


async def begun(run: Run) -> records.Started | None:
    """What is known of the job's process; where its file cannot be read, the oldest with the attempt's mark is it."""
    record = records.read_started(run.folder)
    if record is not None or not records.began(run.folder):
        return record
    found = await asyncio.to_thread(find, run)
    if not found:
        return None
    oldest = min(found, key=lambda process: process.start)
    began = oldest.start / os.sysconf("SC_CLK_TCK")
    return records.Started(oldest.pid, oldest.start, time.time() - (time.monotonic() - began), began)


def _name(pid: int) -> str:
    """A process's name, which holds no secret as its arguments may; "" when it has gone."""
    try:
        text = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    return "".join(character if character.isprintable() else "?" for character in text)
