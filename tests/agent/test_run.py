"""What is found, and signalled, of a job whose shim has gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pipeline.agent.identity import Process, identify
from pipeline.agent.run import Run, remains


def test_a_stranger_with_the_number_of_the_job_is_not_its_remains(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        found = identify(stranger.pid)
        assert found is not None
        run = Run("a", 1, "rel", tmp_path)
        run.main = Process(found.pid, found.start - 5)
        assert remains(run) == set()
        run.main = found
        assert remains(run) == {found}
    finally:
        stranger.kill()
        stranger.wait()


def test_the_session_of_a_job_is_found_after_its_main_process_has_ended(tmp_path: Path) -> None:
    script = "sleep 100 & echo $!"
    main = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, env={})
    started = identify(main.pid)
    assert main.stdout is not None and started is not None
    left = identify(int(main.stdout.readline()))
    assert left is not None
    main.wait()
    run = Run("a", 1, "rel", tmp_path)
    run.main = started
    try:
        assert remains(run) == {left}
    finally:
        subprocess.run(["kill", "-9", str(left.pid)], check=True)
        main.stdout.close()
