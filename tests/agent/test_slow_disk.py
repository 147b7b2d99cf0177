"""A disk that does not answer holds up what must be written, and nobody who reads."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pipeline.agent import paths
from pipeline.protocol import BEAT_S, JobState, RestartPolicy
from tests.agent.mounts import MIB, ext4, hung
from tests.agent.rig import Rig, shell, until

S = JobState
HUNG_FOR_S = 6.0
GAP_S = 2 * BEAT_S
"""Beats come every two seconds at the latest; this machine may be busy."""


class Reader:
    """Follows the event stream: when beats came, and the events."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.beats = [time.monotonic()]
        self.remarks: tuple[str, ...] = ()
        self.events: list[str] = []
        self.task = asyncio.create_task(self.follow())

    async def follow(self) -> None:
        async for line in self.rig.stream(0):
            if line.beat is not None:
                self.beats.append(time.monotonic())
                self.remarks = line.beat.host.remarks if line.beat.host is not None else ()
            if line.event is not None:
                self.events.append(line.event.text)

    def longest_gap(self) -> float:
        return max(after - before for before, after in zip(self.beats, self.beats[1:], strict=False))


@contextmanager
def locked(journal: Path) -> Iterator[None]:
    """The journal cannot be written: somebody else writes, and takes long."""
    other = sqlite3.connect(journal, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def frozen(mount: Path) -> Iterator[None]:
    """Nothing can be written to the file system: who tries hangs in the kernel."""
    subprocess.run(["fsfreeze", "--freeze", str(mount)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(mount)], check=True)


async def hangs(rig: Rig, hanging: AbstractContextManager[None]) -> None:
    """While the journal hangs, and a job dies: beats and state are there, what is not written is not shown."""
    always = RestartPolicy(when="always", limit=10)
    await rig.apply(shell("a", "exec sleep 1000", restart=always))
    status = await rig.reach("a", S.RUNNING)
    assert status.pid is not None
    reader = Reader(rig)
    await until(lambda: reader.events)
    seen = len(reader.events)
    with hanging:
        began = time.monotonic()
        os.kill(status.pid, 9)
        await until(lambda: any("the journal's disk has not answered" in text for text in reader.remarks))
        while time.monotonic() < began + HUNG_FOR_S:
            asked = time.monotonic()
            state = await rig.state()
            assert time.monotonic() - asked < GAP_S
            assert state.jobs["a"] == status and len(reader.events) == seen
            await asyncio.sleep(0.2)
        assert not rig.folder("a", 2).exists()
    await rig.attempted("a", 2)
    await rig.reach("a", S.RUNNING)
    await until(lambda: reader.events[-1] == "a running")
    assert reader.longest_gap() < GAP_S
    reader.task.cancel()
    await until(lambda: answers(rig))


async def answers(rig: Rig) -> bool:
    """Whether the disk is no longer complained of."""
    host = (await rig.state()).beat.host
    return host is not None and not any("journal" in text for text in host.remarks)


async def test_beats_and_state_go_on_while_the_journal_cannot_be_written(agent: Rig) -> None:
    await hangs(agent, locked(Path(paths.journal_path(agent.workdir))))


async def test_beats_and_state_go_on_while_the_work_directory_cannot_be_reached(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    await agent.reach("a", S.RUNNING)
    reader = Reader(agent)
    await until(lambda: reader.events)
    with hung(agent.workdir):
        await until(lambda: any("the jobs were last looked at" in text for text in reader.remarks), within=30)
        assert (await agent.status("a")).state is S.RUNNING
    await until(lambda: not any("looked at" in text for text in reader.remarks))
    assert reader.longest_gap() < GAP_S
    reader.task.cancel()


async def test_a_job_that_ends_while_its_disk_hangs_keeps_its_exit_code(agent: Rig, tmp_path: Path) -> None:
    go = tmp_path / "go"
    await agent.apply(shell("a", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 7"))
    status = await agent.reach("a", S.RUNNING)
    with hung(agent.workdir):
        go.touch()
        await until(lambda: not Path(f"/proc/{status.pid}").exists(), what="the end of the job")
        await agent.says("a", "it has ended; how is told once its disk takes the exit record")
    status = await agent.reach("a", S.FAILED, within=40)
    assert (status.exit_code, status.attempt) == (7, 1)


async def test_a_job_whose_folder_was_removed_is_lost_and_not_begun_again_as_if_it_had_never_run(agent: Rig) -> None:
    await agent.apply(shell("a", "exec sleep 1000"))
    status = await agent.reach("a", S.RUNNING)
    assert status.pid is not None
    shutil.rmtree(agent.workdir / "jobs")
    os.kill(status.pid, 9)
    status = await agent.reach("a", S.LOST, within=60)
    assert status.attempt == 1 and status.diagnosis is not None
    assert "no exit record" in status.diagnosis.evidence[0]


@pytest.mark.skipif(shutil.which("fsfreeze") is None, reason="no fsfreeze here, which makes a disk hang")
async def test_beats_and_state_go_on_while_the_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/sh")
    with ext4(tmp_path / "mount", tmp_path / "image", 64 * MIB) as mount:
        rig = Rig(mount / "work")
        try:
            await rig.start()
            await hangs(rig, frozen(mount))
        finally:
            await rig.close()
