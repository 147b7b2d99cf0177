"""Short memory or disk is told once, and its end once."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from pipeline.agent import watching
from pipeline.agent.board import Board
from pipeline.agent.rules.shortage import DiskSpace, Memory
from pipeline.agent.store import Store
from pipeline.protocol import DiskPolicy, HostSample

LIMIT = 100 * 10**9


def told(memory: Memory, figures: list[tuple[float, float]], began: float = 0.0) -> list[str]:
    """What is told of (used in GB, pressure), one look every two seconds."""
    found = []
    for number, (used, some) in enumerate(figures):
        host = HostSample(0.0, 1, 0.0, int(used * 10**9), LIMIT, "cgroup v2", memory_some=some)
        users = [("prep:B4", 20 * 10**9), ("serve:baseline", 60 * 10**9)]
        text = memory.look(host, users, began + 2.0 * number)
        found += [text] if text else []
    return found


def test_an_episode_is_told_once_with_who_has_the_memory() -> None:
    memory = Memory()
    said = told(memory, [(96.0, 0.0)] * 100)
    assert said == ["memory is short: 4.0 GB of 100 GB left; serve:baseline has 60 GB, prep:B4 has 20 GB"]
    assert memory.short


def test_a_peak_between_two_looks_is_no_episode() -> None:
    assert told(Memory(), [(96.0, 0.0), (80.0, 0.0)] * 50) == []


def test_pressure_alone_tells_after_half_a_minute() -> None:
    assert told(Memory(), [(50.0, 40.0)] * 14) == []
    assert len(told(Memory(), [(50.0, 40.0)] * 17)) == 1


def test_it_is_over_only_when_it_is_well_over() -> None:
    memory = Memory()
    told(memory, [(96.0, 0.0)] * 10)
    assert told(memory, [(94.0, 0.0)] * 100, 100.0) == []  # under the line, but near it
    assert told(memory, [(80.0, 10.0)] * 100, 500.0) == []
    said = told(memory, [(80.0, 0.0)] * 100, 900.0)
    assert said == ["memory is no longer short: 20 GB of 100 GB left"]
    assert len(told(memory, [(96.0, 0.0)] * 10, 2000.0)) == 1


def test_an_agent_that_starts_amid_an_episode_does_not_tell_it_again() -> None:
    assert told(Memory(short=True), [(96.0, 0.0)] * 100) == []


def test_pressure_that_is_not_measured_is_none() -> None:
    host = HostSample(0.0, 1, 0.0, 50 * 10**9, LIMIT, "MemAvailable", memory_some=None)
    memory = Memory()
    assert [memory.look(host, [], 2.0 * number) for number in range(40)] == [""] * 40


# --- Disk ------------------------------------------------------------------------------------------------------------


def told_of_disk(disk: DiskSpace, figures: list[tuple[float, float | None]], began: float = 0.0) -> list[str]:
    """What is told of (free in GB of 2 TB, hours left), one look every two seconds."""
    found = []
    for number, (free, hours) in enumerate(figures):
        left = None if hours is None else hours * 3600
        host = HostSample(
            0.0, 1, 0.0, 0, LIMIT, "", disk_free=int(free * 10**9), disk_total=2 * 10**12, disk_left_s=left
        )
        text = disk.look(host, DiskPolicy(), began + 2.0 * number)
        found += [text] if text else []
    return found


def test_a_disk_is_short_by_share_or_by_the_hours_left() -> None:
    assert told_of_disk(DiskSpace(), [(1900.0, 61.0)] * 10) == []
    assert told_of_disk(DiskSpace(), [(90.0, None)] * 10) == ["the disk is short: 90 GB of 2,000 GB free"]
    said = told_of_disk(DiskSpace(), [(500.0, 5.0)] * 10)
    assert said == ["the disk is short: 500 GB of 2,000 GB free, full in 5 h at the present rate"]


def test_a_disk_that_fills_is_told_again_when_it_is_much_nearer() -> None:
    disk = DiskSpace()
    said = told_of_disk(disk, [(100 * (6 - step / 100), 6 - step / 100) for step in range(600)])
    told = [text.rpartition("full in ")[2].split(" at")[0] for text in said]
    assert told == ["6 h", "89 min", "22 min", "5 min", "72 s"]


def test_a_disk_is_no_longer_short_when_it_has_been_roomy_for_a_minute() -> None:
    disk = DiskSpace()
    told_of_disk(disk, [(90.0, None)])
    assert told_of_disk(disk, [(110.0, None)] * 100, 10.0) == []
    assert told_of_disk(disk, [(500.0, 7.0)] * 100, 300.0) == []
    assert told_of_disk(disk, [(500.0, None), (90.0, None)] * 50, 600.0) == []
    assert told_of_disk(disk, [(500.0, None)] * 40, 900.0) == ["the disk is no longer short: 500 GB of 2,000 GB free"]
    assert not disk.short


def test_a_disk_without_room_for_files_is_short_too() -> None:
    few = HostSample(
        0.0, 1, 0.0, 0, LIMIT, "", disk_free=10**12, disk_total=2 * 10**12, inodes_free=900, inodes_total=10**6
    )
    assert DiskSpace().look(few, DiskPolicy(), 0.0) == (
        "the disk is short: 1,000 GB of 2,000 GB free, room for 900 more files"
    )
    assert DiskSpace().look(HostSample(0.0, 1, 0.0, 0, LIMIT, ""), DiskPolicy(), 0.0) == ""


def test_the_agent_journals_an_episode_once_across_its_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    board = Board(Store(tmp_path / "journal.db"), "boot")
    board.host = HostSample(0.0, 1, 0.0, 97 * 10**9, LIMIT, "cgroup v2", memory_some=0.0)
    memory = Memory()
    watching.judge_memory(board, memory)
    now = 10.0
    board.store._db.execute("PRAGMA query_only=ON")
    with pytest.raises(sqlite3.OperationalError):
        watching.judge_memory(board, memory)
    board.store._db.execute("PRAGMA query_only=OFF")
    assert not memory.short and not board.events  # what could not be journaled is told when it can
    for now in (12.0, 20.0, 30.0):  # noqa: B007 - the clock
        watching.judge_memory(board, memory)
    assert [(event.kind, event.text.split(":")[0]) for event in board.events] == [("host", "memory is short")]
    anew = Memory(short=bool(board.store.mark(watching.MEMORY_MARK, bool)))
    watching.judge_memory(board, anew)
    assert anew.short and len(board.events) == 1
    board.store.close()
