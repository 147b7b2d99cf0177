"""What is found, and signalled, of a job whose shim has gone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pipeline.agent.attempts.identity import Process, identify
from pipeline.agent.attempts.remains import find
from pipeline.agent.attempts.run import Run, follow, prepare, spawn
from pipeline.protocol import JobSpec


def test_a_stranger_with_the_number_of_the_job_is_not_its_remains(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        found = identify(stranger.pid)
        assert found is not None
        run = Run("a", 1, "rel", tmp_path)
        run.main = Process(found.pid, found.start - 5)
        assert find(run) == set()
        run.main = found
        assert find(run) == {found}
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_job_whose_end_could_not_be_recorded_is_not_begun(tmp_path: Path) -> None:
    run = Run("a", 1, "rel", tmp_path / "a")
    (run.folder / ".exit.json").mkdir(parents=True)
    ran = tmp_path / "ran"
    secrets = prepare(run, JobSpec("a", "demo", ("touch", str(ran))), {"PATH": os.environ["PATH"]}, tmp_path, tmp_path)
    ending = await follow(run, spawn(run, secrets), lambda _: None)
    assert ending.void == f"cannot record the attempt in {run.folder}: Is a directory" and ending.exit is None
    assert not ran.exists()


def test_the_session_of_a_job_is_found_after_its_main_process_has_ended(tmp_path: Path) -> None:
    script = "sleep 100 & echo $!"
    main = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, env={})
    started = identify(main.pid)
    assert main.stdout is not None and started is not None
    left = identify(int(main.stdout.readline()))
    assert left is not None
    main.wait()
    run = Run("a", 1, "rel", tmp_path)
    run.main, run.seen = started, True
    try:
        assert find(run) == {left}
        # An agent that did not see the job's process alive cannot know whose session has its number now.
        run.seen = False
        assert find(run) == set()
    finally:
        subprocess.run(["kill", "-9", str(left.pid)], check=True)
        main.stdout.close()
