"""The real program on a terminal: over a wire of 50 ms it shows and does things, and a laptop that sleeps."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks import link as bench
from tests.link.conftest import through
from tests.link.real_console import console, prepare, relayed, starts
from tests.sshd import OpenSshServer

ROUNDS = 10
"""Enough to see that all of it goes on working; how fast it is, is the benchmark's matter."""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_death_is_on_the_screen_and_each_key_starts_the_job_again(
    openssh_server: OpenSshServer, workdir: Path
) -> None:
    with relayed(openssh_server.port, bench.ONE_WAY_S) as it:
        endpoint = through(it.relay, openssh_server)
        deaths, restarts = bench.operated(openssh_server, endpoint, workdir.parent, ROUNDS)
    assert 0 < deaths.p50 <= deaths.max
    assert 0 < restarts.p50 <= restarts.max


@pytest.mark.long
@pytest.mark.parametrize("asleep_s", [8, 30])
def test_a_console_that_slept_says_how_old_its_figures_are_and_catches_up(
    openssh_server: OpenSshServer, workdir: Path, asleep_s: float
) -> None:
    folder = workdir.parent
    asyncio.run(prepare(openssh_server.endpoint, folder, ["a", "b"]))
    with relayed(openssh_server.port, 0.0) as it, console(through(it.relay, openssh_server), folder) as terminal:
        terminal.read_until("live, <3 s old")
        os.kill(terminal.pid, signal.SIGSTOP)
        it.tell(it.relay.cut)
        os.kill(starts(folder, "b")[-1], signal.SIGKILL)
        time.sleep(asleep_s)  # the time asleep is what is tested
        mark = len(terminal.seen)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.read_while(lambda: not says_its_age(terminal.text(mark), asleep_s), "the age of the figures", 10)
        assert "b failed" not in terminal.text(mark)
        it.tell(it.relay.mend)
        it.break_off()
        terminal.read_until("b failed: SIGKILL", 60, since=mark)
        terminal.read_until("live, <3 s old", since=mark)


def says_its_age(text: str, asleep_s: float) -> bool:
    """Whether the header says that the figures are as old as the sleep was long, in whole seconds."""
    return any(f"{word}, {age} s old" in text for word in ("stale", "lost") for age in range(int(asleep_s), 60))
