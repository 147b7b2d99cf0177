"""Jobs and full disks: on which disks a job writes, whether one was full when it ended, what it then waits for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.agent.attempts.plain_files import SPEC_LIMIT, read_plain
from pipeline.agent.diagnosis.log_causes import cause_in, read_log_end
from pipeline.agent.host.disks import Disk, Disks, Space
from pipeline.agent.paths import mount_point
from pipeline.agent.rules.admission import in_words

LOW: Final = 512 * 10**6
LOW_SHARE: Final = 50
"""With less free than this, and on a small disk than one part of so many, a job that says "no space" is believed."""

BRIM: Final = 128 * 10**6
BRIM_SHARE: Final = 100
"""With less than this a job may not even have been able to write why it ended into its log."""

ROOM: Final = 10**9
ROOM_SHARE: Final = 20
FEW_INODES: Final = 16
ROOM_INODES: Final = 1000
"""What a job that ended on a full disk waits for, doubled each time it does so again."""

NO_SPACE: Final = re.compile(r"No space left on device|\bE(?:rrno 28|NOSPC)\b")
_FILE: Final = re.compile(r"(?:Errno 28\]|No space left on device)[^'\n]*'(/[^'\n]+)'")


@dataclass(frozen=True)
class DiskNeed:
    """What must be free on the disk of a path before a job starts again."""

    path: str
    free: int
    inodes: int = 0


@dataclass(frozen=True)
class Filled:
    """A disk that was low when a job ended."""

    path: str
    space: Space

    @property
    def brim(self) -> bool:
        """Whether it was so full that nothing could be written."""
        return few(self.space) or self.space.free < min(BRIM, self.space.total // BRIM_SHARE)

    @property
    def words(self) -> str:
        files = f", room for {self.space.inodes_free} files" if few(self.space) else ""
        return f"{in_words(self.space.free)} of {in_words(self.space.total)} free on the disk of {self.path}{files}"


def few(space: Space) -> bool:
    """Whether hardly any more files can be made."""
    return space.inodes_free is not None and space.inodes_free < FEW_INODES


def low(space: Space) -> bool:
    return few(space) or space.free < min(LOW, space.total // LOW_SHARE)


def disks_of(disks: Disks, folder: Path, log_tail: bytes = b"") -> list[Disk]:
    """Where a job writes: the work directory, the hub's cache, temporary files, and what its last words name."""
    try:
        env: Mapping[str, str] = json.loads(read_plain(folder / "spec.json", SPEC_LIMIT))["env"]
    except (OSError, ValueError, KeyError):
        env = {}
    home = env.get("HOME", "/root")
    cache = env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or f'{home}/.cache'}/huggingface"
    found = [env.get("HF_HUB_CACHE") or f"{cache}/hub", env.get("HF_DATASETS_CACHE") or f"{cache}/datasets"]
    found.append(env.get("TMPDIR") or "/tmp")  # noqa: S108 - asked for its free space
    found += [mount_point(name) for name in _FILE.findall(log_tail.decode(errors="replace"))[-1:]]
    return [disks.work, *(disks.of(Path(name)) for name in dict.fromkeys(found) if name.startswith("/"))]


def fullest(disks: Iterable[Disk]) -> Filled | None:
    """The first of these disks that was low lately, the one with the least free before others."""
    found = []
    for disk in disks:
        disk.look()
        space = disk.least()
        if space is not None and low(space):
            found.append(Filled(str(disk.path), space))
    return min(found, key=lambda each: each.space.free, default=None)


def says_so(log_tail: bytes, *said: str) -> tuple[bool, bool]:
    """Whether a job's last words tell of a full disk; and whether its last exception says that this ended it."""
    if any(NO_SPACE.search(text) for text in said):
        return True, True
    if not NO_SPACE.search(log_tail.decode(errors="replace")):
        return False, False
    log = read_log_end(log_tail)
    cause = cause_in(log)
    last = bool(log.tracebacks) and cause is not None and NO_SPACE.search(cause.seen) is not None
    return last or any(NO_SPACE.search(line) for line in log.lines[-40:]), last


def need_after(filled: Filled, before: DiskNeed | None) -> DiskNeed:
    """What a job waits for that ended on this disk. ``before``: what it had waited for, and was given."""
    space = filled.space
    free = min(ROOM, space.total // ROOM_SHARE)
    inodes = min(ROOM_INODES, (space.inodes_total or 0) // ROOM_SHARE) if few(space) else 0
    if before is not None and before.path == filled.path:
        free, inodes = max(free, 2 * before.free), max(inodes, 2 * before.inodes)
    return DiskNeed(filled.path, min(free, space.total // 2), min(inodes, (space.inodes_total or 0) // 2))


def for_room(need: DiskNeed, space: Space | None) -> str:
    """What a job waits for that needs this much, "" where there is room."""
    if space is None:
        return f"waits for the disk of {need.path}, which has not been looked at yet"
    if space.free < need.free:
        return f"waits for disk: {in_words(space.free)} free, needs {in_words(need.free)} ({need.path})"
    if space.inodes_free is not None and space.inodes_free < need.inodes:
        return f"waits for disk: room for {space.inodes_free:,} files, needs {need.inodes:,} ({need.path})"
    return ""
