"""Short memory is told once, and its end once."""

from __future__ import annotations

from pipeline.agent.shortage import Memory
from pipeline.protocol import HostSample

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
