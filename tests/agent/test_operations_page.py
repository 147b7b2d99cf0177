"""docs/operations.md: every command on it works on a real work directory, every file that is there is on it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.protocol import JobState, Need
from tests.agent.rig import ROOT, Rig, shell

PAGE = (ROOT / "docs" / "operations.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
S = JobState


@pytest.fixture
async def run_of_a_night(agent: Rig) -> Rig:
    """A work directory with a job that is done, one that failed, one that runs and one that waits."""
    line = json.dumps({"result": {"at": 2.0, "records": 2800, "message": "2,800 of 2,809 kept"}})
    await asyncio.to_thread(agent.call, "start")  # writes agent/start
    await agent.apply(
        shell("prep:B1", f"echo reading; echo '{line}' >> $DRAFTDECK_PROGRESS", stage="prep"),
        shell("prep:B5", "echo reading rows; exit 7", stage="prep"),
        shell("generate", "exec sleep 600"),
        shell("merge", "true", needs=(Need("prep:B5"),)),
    )
    await agent.reach("prep:B1", S.DONE)
    await agent.reach("prep:B5", S.FAILED)
    await agent.reach("generate", S.RUNNING)
    await agent.says("merge", "which failed")
    return agent


@pytest.mark.skipif(not shutil.which("sqlite3") or not shutil.which("curl"), reason="sqlite3 and curl are not here")
async def test_every_command_of_the_page(run_of_a_night: Rig) -> None:
    rig = run_of_a_night
    first = BLOCKS[0].replace("/data/draftdeck", str(rig.workdir))
    expected = (
        (f"{rig.runtime}\n",),
        ("rel1", '"exit_code": 7', "reading rows", "2,800 of 2,809 kept", "starting the agent"),
        ("prep:B5 failed: exit code 7", "merge|waiting|waits for prep:B5, which failed", '"exit_code":7'),
        ('"name": "generate"', '"reason":"exit code 7', "}reading rows\n", '"memory_used"', '"text":"plan of test'),
        ('{"done":true,"text":"starting prep:B5"}', '{"ok": true'),
    )
    assert len(BLOCKS) == len(expected)
    for block, words in zip((BLOCKS[0] + "echo $R\n", *BLOCKS[1:]), expected, strict=True):
        script = (
            f"set -e\n{first if block is not BLOCKS[0] else ''}{block.replace('/data/draftdeck', str(rig.workdir))}"
        )
        done = await asyncio.to_thread(
            subprocess.run, ["/bin/sh", "-c", script], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), block
        for word in words:
            assert word in done.stdout, f"{word!r} is not in what these say:\n{block}\n{done.stdout}"
    await rig.attempted("prep:B5", 2)


async def test_every_file_is_on_the_page(run_of_a_night: Rig) -> None:
    rig = run_of_a_night
    folders = [rig.runtime, rig.workdir / "agent", rig.folder("prep:B1"), rig.folder("generate")]
    for name in sorted({path.name for folder in folders for path in folder.iterdir()}):
        base = name.removesuffix("-wal").removesuffix("-shm")
        assert re.search(rf"[`/]{re.escape(base)}`", PAGE), f"{name} is not on the page"
    for name in re.findall(r"^\| … `([^`]+)`", PAGE, re.MULTILINE):
        if name != "grace":
            assert (rig.folder("prep:B1") / name).exists(), f"no attempt has {name}"


def test_every_state_is_on_the_page() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)[: len(S)] == [str(state) for state in sorted_states()]


def sorted_states() -> list[JobState]:
    """In the order in which a job goes through them."""
    last = [S.DONE, S.EMPTY, S.FAILED, S.STOPPED, S.LOST]
    return [state for state in S if state not in last] + last


def test_the_page_is_linked() -> None:
    for page in ("README.md", "docs/architecture.md"):
        assert "operations.md" in Path(ROOT, page).read_text()
