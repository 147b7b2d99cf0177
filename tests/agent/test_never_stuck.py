"""What goes wrong beside a job leaves neither the job nor the agent waiting for ever."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.agent import paths
from pipeline.agent.attempts.identity import send
from pipeline.agent.host import gpus
from pipeline.agent.host.gpus import GpuWatch
from pipeline.protocol import JobState
from tests.agent.rig import ROOT, Rig, shell, until


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_an_end_whose_remains_cannot_be_read_is_told_all_the_same(agent: Rig) -> None:
    spoil = 'cd "$(dirname "$DRAFTDECK_PROGRESS")" && rm log && ln -s $(printf %0300d 0) log && exit 3'
    await agent.apply(shell("a", spoil), shell("b", "true"))
    status = await agent.reach("a", JobState.FAILED, within=60)
    assert status.exit_code == 3
    assert "exit code 3; what it left cannot be read" in status.reason and "File name too long" in status.reason
    await agent.act("a", "start")
    await agent.attempted("a", 2)


async def test_a_shutdown_that_could_not_be_journaled_leaves_an_agent_that_starts_jobs(agent: Rig) -> None:
    await agent.apply(shell("a", "sleep 1000"))
    await agent.reach("a", JobState.RUNNING)
    journal = sqlite3.connect(paths.journal_path(agent.workdir), timeout=30)
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON requests BEGIN SELECT RAISE(FAIL, 'no room'); END"
    journal.execute(refuse)
    answer = await agent.client.post(
        "/v1/shutdown?jobs=stop", content=json.dumps({"by": "tester", "request": "again-and-again"})
    )
    assert answer.status_code == 507, answer.text
    journal.execute("DROP TRIGGER refuse")
    journal.close()
    await agent.apply(shell("a", "sleep 1000"), shell("b", "sleep 1000"))
    await agent.reach("b", JobState.RUNNING)
    assert (await agent.status("a")).state is JobState.RUNNING


async def test_a_keeper_that_could_not_be_started_is_started_later(agent: Rig) -> None:
    log = agent.runtime / "keeper.log"
    log.unlink()
    log.mkdir()  # as if nothing could be opened
    keeper = agent.holder("keeper")
    assert keeper is not None and send(keeper, 9)
    await until(lambda: "the keeper cannot be started, trying again" in agent.log())
    log.rmdir()
    await agent.replaced("keeper", keeper)


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "print('words of a library, no figures')"])
def test_a_reader_of_gpus_that_never_says_anything_keeps_no_job_waiting(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = tmp_path / "reader.py"
    reader.write_text(script)
    monkeypatch.setattr(gpus, "READER", str(reader))
    watch = GpuWatch()
    try:
        assert watch.wait_first(30) and watch.looked
        assert any("GPU figures are missing" in remark for remark in watch.remarks())
    finally:
        watch.stop()


def test_a_process_does_not_pass_for_dead_when_no_more_files_can_be_opened() -> None:
    code = """
import os, resource
from pipeline.agent.attempts.identity import alive, identify, open_pidfd, send
me = identify(os.getpid())
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
while len(held) < 40:
    try:
        held.append(os.dup(0))
    except OSError:
        break
for ask in (alive, open_pidfd):
    try:
        print(ask(me))
    except OSError as error:
        print(error.strerror)
print(send(me, 0))
os.close(held.pop()); os.close(held.pop())
print(alive(me))
"""
    assert python(code).split("\n")[:4] == ["Too many open files", "Too many open files", "False", "True"]


def test_what_a_look_at_the_tree_has_missed_is_ended_within_the_grace(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys, time
from pipeline.agent.attempts import attempt
from pipeline.agent.attempts.identity import identify
main = subprocess.Popen(["true"])
child = subprocess.Popen(["sleep", "1000"])
tree = attempt.Attempt(sys.argv[1], identify(main.pid), 0.5)
looks = []
seen = attempt.descendants
attempt.descendants = lambda root: seen(root) if looks else looks.append(root) or []
os.waitid(os.P_PID, main.pid, os.WEXITED | os.WNOWAIT)
began = time.monotonic()
tree.follow()
print(tree.status, time.monotonic() - began < 30)
"""
    assert python(code, str(tmp_path)).split() == ["0", "True"]


async def test_a_job_whose_folder_makes_no_sense_holds_up_no_other(agent: Rig) -> None:
    lying = agent.folder("a").parent / ("9" * 200)
    lying.mkdir(parents=True)
    await agent.apply(shell("a", "true"), shell("b", "true"))
    await agent.reach("b", JobState.DONE)
    assert "cannot start: " in (await agent.reach("a", JobState.QUEUED)).reason
    lying.rmdir()
    await agent.reach("a", JobState.DONE)


async def test_a_folder_beside_the_attempts_is_no_attempt(agent: Rig) -> None:
    (agent.folder("a").parent / "²").mkdir(parents=True)
    await agent.apply(shell("a", "true"))
    assert (await agent.reach("a", JobState.DONE)).attempt == 1


async def test_what_a_plan_ends_is_ended_though_a_grace_can_be_neither_written_nor_told_of(agent: Rig) -> None:
    before = (shell("a", "exec sleep 1000", stop_grace_s=9.0), shell("b", "exec sleep 1000"))
    after = (shell("a", "exec sleep 1000", stop_grace_s=8.0), shell("b", "exec sleep 1001"))
    await agent.apply(*before)
    for name in "ab":
        await agent.reach(name, JobState.RUNNING)
    folder = agent.folder("a")
    away = folder.rename(folder.with_name("away"))
    journal = sqlite3.connect(paths.journal_path(agent.workdir), timeout=30)
    told = "CAST(NEW.body AS TEXT) LIKE '%its new grace%'"
    journal.execute(f"CREATE TRIGGER refuse BEFORE UPDATE ON events WHEN {told} BEGIN SELECT RAISE(FAIL, 'full'); END")
    reply = await agent.apply(*after)
    assert [change.effect for change in reply.changes] == ["live", "restarts"]
    journal.execute("DROP TRIGGER refuse")
    journal.close()
    away.rename(folder)
    await agent.attempted("b", 2)
    assert any("a: its new grace is for the next attempt only" in event.text for event in (await agent.state()).events)
