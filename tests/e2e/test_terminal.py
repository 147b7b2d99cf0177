"""The installed command in a real terminal: a crash is seen, a key mends it, the console is closed and opened again."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import DRAFTDECK
from tests.waiting import wait_until


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, columns: int, lines: int) -> None:
        self._name = f"draftdeck-test-{uuid.uuid4().hex[:8]}"
        self._size = (str(columns), str(lines))

    def run(self, *argv: str) -> None:
        columns, lines = self._size
        # Where a test runner's line editing left its own size in the environment, the console would go by that.
        command = ("env", "-u", "COLUMNS", "-u", "LINES", *argv)
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", lines, shlex.join(command))

    def screen(self) -> str:
        done = subprocess.run(["tmux", "-L", self._name, "capture-pane", "-p"], capture_output=True, text=True)
        return done.stdout

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def ended(self) -> bool:
        return subprocess.run(["tmux", "-L", self._name, "has-session"], capture_output=True).returncode != 0

    def sees(self, pattern: str, within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while re.search(pattern, screen := self.screen()) is None:
            assert time.monotonic() < deadline, f"waited {within} s in vain for {pattern!r} on\n{screen}"
            time.sleep(0.05)

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True)

    def _tmux(self, *arguments: str) -> None:
        subprocess.run(["tmux", "-L", self._name, *arguments], check=True)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal(120, 40)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A demo's folder; the demo is stopped at the end."""
    yield tmp_path / "demo"
    subprocess.run([str(DRAFTDECK), "demo", "--dir", str(tmp_path / "demo"), "--stop"], check=True, timeout=60)


def processes(folder: Path, word: str) -> list[psutil.Process]:
    """Processes of the demo in ``folder`` whose command line holds ``word``."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or [])
        if word in line and (str(folder) in line or process.info["cwd"] == str(folder / "work")):
            found.append(process)
    return found


@pytest.mark.timeout(360)
def test_crash_key_recovery_close_and_come_back(terminal: Terminal, folder: Path, model: Path) -> None:
    demo = (str(DRAFTDECK), "demo", "--dir", str(folder), "--size", "2")
    terminal.run(*demo)
    terminal.sees(r"prep:B2 +running", within=150)
    (prep,) = processes(folder, "pipeline.prep --dataset B2")
    prep.send_signal(signal.SIGKILL)
    terminal.sees(r"prep:B2 +failed +SIGKILL")
    terminal.sees(r"1 failed|prep:B2 was|R restarts|r restarts")

    terminal.keys("/")
    terminal.sees("name, state or reason")
    terminal.keys("B", "2")
    terminal.sees(r"Jobs \d of 14")
    terminal.sees("⏎ take it")
    terminal.keys("Enter")
    terminal.sees("prep:B2 failed · SIGKILL")
    terminal.sees("r restart")
    terminal.keys("r")
    terminal.sees(r"prep:B2 +done", within=90)
    terminal.keys("Escape")
    terminal.sees(r"serve:baseline +(running|ready)")

    (server,) = processes(folder, "pipeline.demo.server")
    started = server.create_time()
    for columns, lines in ((80, 24), (40, 12), (200, 50)):
        terminal.resize(columns, lines)
        terminal.sees("prep:A1")
    terminal.keys("q")
    wait_until(terminal.ended, "the console's end")
    terminal.run(*demo)
    terminal.sees(r"serve:baseline +ready", within=90)
    (server,) = processes(folder, "pipeline.demo.server")
    assert server.create_time() == started
    terminal.keys("q")
    wait_until(terminal.ended, "the console's end")
