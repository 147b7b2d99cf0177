"""The logs of agent and keeper: within their caps however long they run, and still written where they were removed."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.agent import own_log
from pipeline.agent.attempts.identity import send
from pipeline.protocol import JobState
from tests.agent.rig import Rig, shell, until


def lengthen(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * (own_log.LIMIT // 100))


def short(log: Path) -> bool:
    return log.stat().st_size < own_log.LIMIT


async def test_a_log_that_has_grown_long_is_moved_aside_and_goes_on(agent: Rig) -> None:
    for name in ("agent", "keeper"):
        log = agent.runtime / f"{name}.log"
        for _ in range(2):
            lengthen(log)
            await until(partial(short, log), what=f"a new {name}.log")
            assert log.with_name(f"{name}.log.1").stat().st_size <= own_log.LIMIT + 10_000
    await agent.apply(replace(shell("a", "true"), secrets=("DRAFTDECK_TEST_ABSENT",)))
    await agent.reach("a", JobState.FAILED)
    await until(lambda: "attempt 1 of a cannot be started" in agent.log())
    old = agent.holder("agent")
    assert old is not None and send(old, signal.SIGKILL)
    await until(lambda: "the agent has ended: signal 9" in (agent.runtime / "keeper.log").read_text())
    await agent.replaced("agent", old)


async def test_a_log_that_was_removed_is_begun_anew(agent: Rig) -> None:
    log = agent.runtime / "agent.log"
    log.unlink()
    await until(log.exists)
    await agent.apply(replace(shell("a", "true"), secrets=("DRAFTDECK_TEST_ABSENT",)))
    await agent.reach("a", JobState.FAILED)
    await until(lambda: "attempt 1 of a cannot be started" in agent.log())
