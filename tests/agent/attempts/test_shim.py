"""The shim by itself: claims, exit records, and the end of a job's tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.agent.attempts.attempt import command_of
from pipeline.agent.attempts.attempt_files import EXIT_SPACE
from pipeline.agent.attempts.identity import alive, identify
from pipeline.agent.attempts.records import (
    Exit,
    abandon,
    claimed,
    find_shim,
    read_claim,
    read_exit,
    read_started,
)
from tests.agent.rig import ROOT

SHIM = ROOT / "pipeline" / "agent" / "attempts" / "shim.py"


def soon(look: Callable[[], Any], within: float = 10.0) -> Any:
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def begin(folder: Path, script: str, before: Sequence[str] = (), **fields: Any) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    spec = {
        "job": "x", "number": 1, "argv": ["/bin/sh", "-c", script], "env": {"PATH": os.environ["PATH"], "KNOWN": "1"},
        "cwd": str(folder), "log": str(folder / "log"), "grace_s": 1.0, "oom_score_adj": 500, **fields,
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
    return subprocess.Popen(
        [*before, sys.executable, "-I", "-S", str(SHIM), str(folder)],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={"HIDDEN": "secret-value"},
    )


def run(folder: Path, script: str, **fields: Any) -> Exit:
    assert begin(folder, script, **fields).wait(20) == 0
    record = read_exit(folder)
    assert record is not None
    return record


def test_exit_code_log_and_environment(tmp_path: Path) -> None:
    script = "echo out; echo err >&2; echo $KNOWN $HIDDEN; cat; exit 9"
    record = run(tmp_path, script, secrets=["HIDDEN", "ABSENT"])
    assert (record.exit_code, record.signal, record.error, record.left_over) == (9, None, "", ())
    assert (tmp_path / "log").read_text() == "out\nerr\n1 secret-value\n"
    assert record.main_exited[1] <= record.tree_empty[1] and record.max_rss > 0
    claim, started = read_claim(tmp_path), read_started(tmp_path)
    assert claim is not None and started is not None and claim.owner == "shim" and started.at >= claim.at
    assert "secret-value" not in (tmp_path / "spec.json").read_text()


def test_the_record_says_when_and_with_what(tmp_path: Path) -> None:
    wall, monotonic = time.time(), time.monotonic()
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: bytearray(30 << 20)"
    left = (
        f"setsid sh -c 'touch {tmp_path}/there; exec sleep 1000' & while [ ! -e {tmp_path}/there ]; do sleep 0.1; done"
    )
    record = run(tmp_path, f"{sys.executable} -I -S -c '{busy}'; {left}; exit 4", grace_s=5.0)
    assert (record.exit_code, record.signal, record.asked) == (4, None, "")
    for before, (main, empty), after in (
        (wall, (record.main_exited[0], record.tree_empty[0]), time.time()),
        (monotonic, (record.main_exited[1], record.tree_empty[1]), time.monotonic()),
    ):
        assert before < main < empty <= after
    assert 0.3 <= record.user_s + record.system_s < 20 and record.max_rss > 30 << 20
    assert len(record.left_over) == 1 and record.left_over[0].endswith("sleep 1000")


def test_a_signal_is_not_an_exit_code(tmp_path: Path) -> None:
    record = run(tmp_path, "kill -9 $$")
    assert (record.exit_code, record.signal) == (None, signal.SIGKILL)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    record = run(tmp_path, "", argv=["/no/such/program"])
    assert record.error == "cannot run /no/such/program: No such file or directory"


@pytest.mark.parametrize(("field", "value"), [("cwd", "/no/such/folder"), ("log", "/no/such/folder/log")])
def test_a_place_that_is_not_there(tmp_path: Path, field: str, value: str) -> None:
    record = run(tmp_path, "true", **{field: value})
    assert value in record.error and "No such file" in record.error


def test_what_the_job_leaves_behind_is_ended(tmp_path: Path) -> None:
    script = (
        "setsid sleep 1000 & (trap '' TERM; exec setsid sleep 1001) & (setsid sh -c 'sleep 1002 & exit') & sleep 0.2"
    )
    record = run(tmp_path, script, grace_s=0.3)
    assert record.exit_code == 0 and len(record.left_over) == 3
    assert record.tree_empty[1] - record.main_exited[1] >= 0.3
    for line in record.left_over:
        found = identify(int(line.split()[0]))
        assert found is None or not alive(found)


def test_one_that_is_on_its_way_out_has_a_name_still() -> None:
    process = subprocess.Popen(["true"])
    soon(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes())  # it has ended and is not collected yet
    assert command_of(process.pid, []) == "[true]"
    process.wait()
    assert command_of(process.pid, []) == ""


def test_a_record_holds_no_secret_and_fits_into_its_space(tmp_path: Path) -> None:
    script = "(exec setsid sh -c 'sleep 1000; : secret-value') & sleep 0.2"
    record = run(tmp_path, script, secrets=["HIDDEN"])
    assert any("***" in line for line in record.left_over)
    assert b"secret-value" not in (tmp_path / "exit.json").read_bytes()
    folder = tmp_path / "long"
    record = run(folder, "", argv=["/no/" + "ä" * 3000])
    assert record.error.startswith("cannot run /no/ä") and (folder / "exit.json").stat().st_size <= EXIT_SPACE


def test_term_ends_the_tree_after_the_grace(tmp_path: Path) -> None:
    shim = begin(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done", grace_s=0.4)
    soon(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text())
    began = time.monotonic()
    shim.send_signal(signal.SIGTERM)
    assert shim.wait(10) == 0
    record = read_exit(tmp_path)
    assert record is not None and record.asked == "stop" and record.signal == signal.SIGKILL
    assert time.monotonic() - began >= 0.4


def test_a_job_may_end_in_order_when_told(tmp_path: Path) -> None:
    shim = begin(tmp_path, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done", grace_s=10)
    soon(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text())
    shim.send_signal(signal.SIGTERM)
    assert shim.wait(10) == 0
    record = read_exit(tmp_path)
    assert record is not None and (record.exit_code, record.asked) == (0, "stop")
    assert (tmp_path / "log").read_text() == "up\nbye\n"


def test_usr1_kills_at_once(tmp_path: Path) -> None:
    shim = begin(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done", grace_s=60)
    soon(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text())
    shim.send_signal(signal.SIGUSR1)
    assert shim.wait(5) == 0
    record = read_exit(tmp_path)
    assert record is not None and (record.signal, record.asked) == (signal.SIGKILL, "kill")


def test_hangup_and_interrupt_do_not_reach_the_job(tmp_path: Path) -> None:
    shim = begin(tmp_path, "echo up; sleep 0.5; exit 5")
    soon(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text())
    shim.send_signal(signal.SIGHUP)
    shim.send_signal(signal.SIGINT)
    assert shim.wait(10) == 0
    record = read_exit(tmp_path)
    assert record is not None and record.exit_code == 5


def test_of_shims_and_agents_that_claim_at_once_one_wins(tmp_path: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    for turn in range(6):
        folder = tmp_path / str(turn)
        shims = [begin(folder, "echo ran", number=turn) for _ in range(3)]
        won = abandon(folder, me, "here") if turn % 2 else False
        codes = sorted(shim.wait(20) for shim in shims)
        owner = read_claim(folder)
        assert owner is not None
        if won:
            assert codes == [75, 75, 75] and owner.owner == "abandoned" and not (folder / "log").exists()
        else:
            assert codes == [0, 75, 75] and owner.owner == "shim" and (folder / "log").read_text() == "ran\n"
        assert not abandon(folder, me, "here")


def test_a_killed_shim_leaves_no_job_that_was_not_recorded(tmp_path: Path) -> None:
    for turn in range(12):
        folder = tmp_path / str(turn)
        shim = begin(folder, "echo $$ > pid; exec sleep 1000")
        time.sleep(0.004 * turn)
        shim.kill()
        shim.wait()
        time.sleep(0.05)
        started = read_started(folder)
        if (folder / "pid").exists():
            assert started is not None and started.pid == int((folder / "pid").read_text())
        if started is not None:
            assert claimed(folder)
            os.kill(started.pid, signal.SIGKILL) if alive(started.process) else None


def test_a_shim_is_found_by_its_command_line(tmp_path: Path) -> None:
    shim = begin(tmp_path, "sleep 0.5")
    soon(lambda: claimed(tmp_path))
    found = find_shim(tmp_path)
    assert found is not None and found.pid == shim.pid
    assert find_shim(tmp_path / "other") is None
    shim.wait(10)


def test_a_shim_is_small(tmp_path: Path) -> None:
    shim = begin(tmp_path, "sleep 1")
    soon(lambda: read_started(tmp_path))
    rollup = Path(f"/proc/{shim.pid}/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    shim.terminate()
    shim.wait(10)
    assert private < 6 * 1024, f"{private} KiB"
