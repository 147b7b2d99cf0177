"""``draftdeck demo --headless`` as a user runs it: the real command, the real model, an SSH server, all stages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.agent import paths
from pipeline.demo import container
from tests.e2e.answers import check_run
from tests.e2e.conftest import DRAFTDECK

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
    for stage in ("prep", "generate", "merge"):
        assert f"\n  {stage} " in done.stdout
    assert container.running(tmp_path / "demo" / "container") is None
    assert not Path(paths.runtime_dir(str(tmp_path / "demo" / "work")), "agent.sock").exists()


@pytest.mark.timeout(300)
def test_roles_that_nobody_knows_fail_the_run_and_say_so(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path / "demo", "--headless", "--size", str(SIZE), "--break", "B5")
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = {
        line.strip() for line in done.stdout.splitlines() if "prep:B5" in line and "empty" in line and "asker" in line
    }
    assert "replier" in line
    assert "user" in line
    assert not list((tmp_path / "demo" / "work").glob("data/responses/*.jsonl"))
