"""The logs of agent and keeper: within their caps however long they run, and still written where they were removed."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.agent import own_log
from pipeline.agent.attempts.identity import send
from pipeline.protocol import JobState
from tests.agent.rig import ROOT, Rig, shell, until


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


def writes(log: Path, code: str) -> None:
    """Run code that knows ``keep`` and ``log`` in a process whose output goes to ``log``."""
    code = f"import os, resource, sys\nfrom pipeline.agent.own_log import keep\nlog = sys.argv[1]\n{code}"
    with log.open("ab") as out:
        subprocess.run([sys.executable, "-c", code, log], cwd=ROOT, stdout=out, stderr=out, timeout=60, check=True)


def test_a_log_goes_on_where_it_is_until_a_new_one_can_be_made(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    lengthen(log)
    writes(
        log,
        """
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
try:
    keep(log)
except OSError:
    print("refused", flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
keep(log)
print("new", flush=True)
""",
    )
    assert log.read_text() == "new\n"
    assert log.with_name("agent.log.1").read_text().endswith("y\nrefused\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.log", "agent.log.1"]


def test_a_log_that_was_only_moved_aside_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    writes(log, 'os.replace(log, log + ".1")\nkeep(log)\nprint("new", flush=True)')
    assert log.read_text() == "new\n"
