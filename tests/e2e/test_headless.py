"""``draftdeck demo --headless`` as a user runs it: the real command, the real model, an SSH server, all stages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.agent import locks, paths
from pipeline.demo import container
from tests.e2e.answers import check_run
from tests.e2e.conftest import DRAFTDECK
from tests.waiting import wait_until

SIZE = 2


def run(folder: Path, *arguments: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    argv = [str(DRAFTDECK), "demo", "--dir", str(folder), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout)


@pytest.mark.timeout(450)
def test_every_stage_of_the_demo_succeeds(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path / "demo", "--headless", "--size", str(SIZE))
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path / "demo" / "work", SIZE)
    assert "wall time by stage" in done.stdout
    for stage in ("prep", "dedup", "generate", "merge"):
        assert f"\n  {stage} " in done.stdout
    assert container.running(tmp_path / "demo" / "container") is None
    lock = Path(paths.runtime_dir(str(tmp_path / "demo" / "work")), "agent.lock")
    wait_until(lambda: locks.holder(str(lock)) is None, "the end of the agent")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_roles_that_nobody_knows_fail_the_run_and_say_so(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path / "demo", "--headless", "--size", str(SIZE), "--break", "B5")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "prep:B5 empty" in line]
    assert lines, done.stdout
    for word in ("asker", "replier", "user"):
        assert word in lines[0]
    assert not list((tmp_path / "demo" / "work").glob("data/responses/*.jsonl"))
