"""The files of an attempt, as the agent reads them: claim, start record, exit record. The shim writes them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from pipeline.agent.attempts.attempt_files import claim, sync
from pipeline.agent.attempts.identity import Process
from pipeline.agent.attempts.plain_files import read_plain

Record = TypeVar("Record")


@dataclass(frozen=True)
class Claim:
    """Who owns an attempt: its shim, or an agent that found it without one ("abandoned")."""

    owner: str
    pid: int
    start: int
    container: str
    at: float

    @property
    def process(self) -> Process:
        return Process(self.pid, self.start)


@dataclass(frozen=True)
class Started:
    """The main process of the job. Written before its program is executed."""

    pid: int
    start: int
    at: float
    monotonic: float
    oom_counter: str = ""  # the file that counts the kernel's kills for memory where the job runs
    cgroup: str = ""  # the folder of its own memory cgroup, where it has one
    refused: tuple[str, ...] = ()  # what the kernel did not allow at its start, in words

    @property
    def process(self) -> Process:
        return Process(self.pid, self.start)


@dataclass(frozen=True)
class Exit:
    """How an attempt ended. Times are (wall, monotonic) seconds; memory is bytes."""

    exit_code: int | None
    signal: int | None
    main_exited: tuple[float, float]
    tree_empty: tuple[float, float]
    error: str = ""  # why the program could not be executed
    asked: str = ""  # "stop" or "kill" when the shim was told to end it
    left_over: tuple[str, ...] = ()  # what the main process left behind, ended by the shim
    oom_before: int | None = None
    oom_after: int | None = None
    cgroup_peak: int | None = None  # the most its own cgroup was charged with, page cache included
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss: int = 0  # of its largest process, mapped files included


def read_claim(folder: Path) -> Claim | None:
    """The attempt's claim; None while there is none or it is still being written."""
    return _read(folder / "claim", Claim)


def read_started(folder: Path) -> Started | None:
    return _read(folder / "started.json", Started)


def read_exit(folder: Path) -> Exit | None:
    return _read(folder / "exit.json", Exit)


def abandon(folder: Path, me: Process, container: str) -> bool:
    """Claim an attempt that no shim has claimed, so that none ever will; False when a shim was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    owner: dict[str, object] = {"owner": "abandoned", "pid": me.pid, "start": me.start, "container": container}
    won = claim(str(folder), owner)
    sync(str(folder))
    return won


def claimed(folder: Path) -> bool:
    return os.path.lexists(folder / "claim")


def began(folder: Path) -> bool:
    """Whether the job's process was recorded, readable or not: its claim was whole before."""
    return os.path.lexists(folder / "started.json")


def find_shim(folder: Path) -> Process | None:
    """The living shim of this attempt: it was started for it, by its command line, or works in its folder."""
    wanted = os.fsencode(folder)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            if not any(part.endswith(b"/shim.py") for part in argv):
                continue
            place = os.fsencode((entry / "cwd").readlink())
            start = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[19])
        except OSError:
            continue
        if wanted in (*argv, place):
            return Process(int(entry.name), start)
    return None


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return msgspec.json.decode(read_plain(path), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return None
