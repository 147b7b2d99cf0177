"""The survey of a host: real file systems, real ports, real files; nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.agent import paths, survey
from pipeline.agent.survey import look_at_disk, within
from pipeline.protocol import Survey

PYTHON = sys.executable


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, 1 MiB large."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "mounted"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_it_runs_on_the_standard_library_alone_and_prints_what_the_console_reads(tmp_path: Path) -> None:
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pipeline.agent import survey
print(json.dumps(survey.answer({{"workdir": {str(tmp_path)!r}, "secrets": ["HF_TOKEN"]}})))
"""
    # -S: no installed package can be imported.
    done = subprocess.run([PYTHON, "-I", "-S", "-c", code], capture_output=True, check=True, timeout=60)
    found = msgspec.json.decode(done.stdout, type=Survey)
    assert found.disk.path == str(tmp_path) and found.disk.exists and found.host.memory_limit > 0
    assert found.secrets["HF_TOKEN"] in ("", "pid 1") and abs(found.at - time.time()) < 60


def test_a_disk_is_tried_and_nothing_stays_on_it(tmpfs: Path) -> None:
    found = look_at_disk(tmpfs / "not" / "yet")
    assert (found.path, found.exists, found.kind, found.refused) == (str(tmpfs), False, "tmpfs", "")
    assert not found.no_holes and not found.network
    assert list(tmpfs.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,ro", tmpfs], check=True)
    assert look_at_disk(tmpfs).refused == "Read-only file system"


def test_a_full_disk_is_told(tmpfs: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (tmpfs / "filler").write_bytes(b"x" * (2 << 20))
    assert look_at_disk(tmpfs).refused == "No space left on device"


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "work").touch()
    assert look_at_disk(tmp_path / "work").refused == "it is not a folder"


def test_where_no_nameless_file_can_be_made_a_named_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert look_at_disk(tmp_path).refused == "" and list(tmp_path.iterdir()) == []


def test_a_look_that_hangs_is_given_up() -> None:
    began = time.monotonic()
    assert within(0.1, lambda: threading.Event().wait(), None) is None
    assert time.monotonic() - began < 10
    with pytest.raises(ZeroDivisionError):
        within(10, lambda: 1 // 0, 0)


def test_who_calls_the_start_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = str(tmp_path / "agent" / "start")
    entry = tmp_path / "entrypoint.sh"
    entry.write_text(f"#!/bin/sh\n{start}\nexec sleep infinity\n")
    monkeypatch.setattr(survey, "_first_arguments", lambda: ["/bin/sh", str(entry)])
    assert survey._hook(start) == str(entry)
    monkeypatch.setattr(survey, "_first_arguments", lambda: ["/bin/sh", "-c", f"{start}; exec sleep infinity"])
    assert survey._hook(start) == "the command line of pid 1"
    monkeypatch.setattr(survey, "_first_arguments", lambda: ["/bin/sh"])
    assert survey._hook(start) == ""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "crontab").write_text(
        f"#!/bin/sh\necho '# @reboot {start}'\n[ ! -e {tools}/on ] || echo '@reboot {start}'\n"
    )
    (tools / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert survey._hook(start) == ""
    (tools / "on").touch()
    assert survey._hook(start) == "crontab"


def test_a_runtime_folder_that_others_can_enter_is_told(tmp_path: Path) -> None:
    assert survey._runtime(tmp_path) == ""
    folder = Path(paths.runtime_dir(tmp_path))
    try:
        assert survey._runtime(tmp_path) == ""
        folder.chmod(0o755)
        assert "chmod 700" in survey._runtime(tmp_path)
    finally:
        folder.rmdir()
