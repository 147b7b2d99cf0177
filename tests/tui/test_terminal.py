"""The console on a real terminal: it paints, it leaves on q, and it leaves when the terminal is gone."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass
class Terminal:
    """A child on a pseudo terminal of its own, and our end of it."""

    pid: int
    end: int
    seen: bytes = b""

    def read_until(self, text: bytes, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:]
            if select.select([self.end], [], [], 0.1)[0]:
                self.seen += os.read(self.end, 65536)

    def ended(self, within_s: float) -> int | None:
        """The exit code, negative for a signal; None where it still runs."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # what it writes on its way out must not fill the terminal
                if select.select([self.end], [], [], 0.01)[0]:
                    self.seen += os.read(self.end, 65536)
        return None


@contextlib.contextmanager
def console(*, nohup: bool = False) -> Iterator[Terminal]:
    pid, end = pty.fork()
    if pid == 0:
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": "120",
            "LINES": "40",
            "TEXTUAL_ANIMATIONS": "none",
        }
        os.execve(sys.executable, [sys.executable, "-m", "tests.tui.on_terminal"], environment)
    terminal = Terminal(pid, end)
    try:
        terminal.read_until(b"needs you")
        yield terminal
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.close(end)


def test_q_leaves_and_says_that_jobs_go_on() -> None:
    with console() as terminal:
        os.write(terminal.end, b"q")
        assert terminal.ended(10.0) == 0
        assert b"jobs go on at gpu-3" in terminal.seen


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_gone_ends_it_within_a_second(nohup: bool) -> None:
    with console(nohup=nohup) as terminal:
        os.close(terminal.end)
        begun = time.monotonic()
        code = terminal.ended(5.0)
        took = time.monotonic() - begun
        assert code == 128 + signal.SIGHUP
        assert took < 1.5  # a second, and what a busy machine adds


def test_a_terminal_that_nobody_reads_does_not_hold_it_up() -> None:
    with console() as terminal:
        os.kill(terminal.pid, signal.SIGHUP)
        begun = time.monotonic()
        while os.waitpid(terminal.pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() - begun < 3.0
            time.sleep(0.01)


def test_sigterm_ends_it_and_the_terminal_is_as_before() -> None:
    with console() as terminal:
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.ended(3.0) == 128 + signal.SIGTERM
        assert b"\x1b[?1049l" in terminal.seen
