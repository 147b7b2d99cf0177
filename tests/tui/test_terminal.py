"""The console on a real terminal: it paints, it leaves on q, and it leaves when the terminal is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.pseudo_terminal import Terminal, on_terminal


@contextlib.contextmanager
def console(*, nohup: bool = False) -> Iterator[Terminal]:
    with on_terminal([sys.executable, "-m", "tests.tui.on_terminal"], nohup=nohup) as terminal:
        terminal.read_until("needs you")
        yield terminal


def test_q_leaves_and_says_that_jobs_go_on() -> None:
    with console() as terminal:
        terminal.write(b"q")
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
        assert took < 3.0  # a second, and what a busy machine adds


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
