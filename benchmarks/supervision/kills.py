"""What a SIGKILL costs under a supervisor: of one job, of all jobs, of the supervisor itself."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

from benchmarks.supervision.jobs import EXIT_CODE, Jobs, wait_for
from benchmarks.supervision.peers import Supervisor

APART_S: Final = 0.5
BACK_S: Final = 60.0
ENDING: Final = 2
"""Of the jobs, so many end while the supervisor is away."""


class Killed:
    """Jobs that were killed, and how many seconds each took to run again."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._due: dict[Path, tuple[float, int]] = {}  # by file of starts: killed when, and its size then
        self.took: list[float] = []

    def kill(self, name: str) -> None:
        pid, path = self._jobs.starts(name)[-1], self._path(name)
        self._due[path] = (time.monotonic(), path.stat().st_size)
        os.kill(pid, signal.SIGKILL)

    def back(self, name: str | None = None) -> bool:
        """Whether a job, or every job, runs again."""
        now = time.monotonic()
        for path, (began, size) in list(self._due.items()):
            if path.stat().st_size > size:
                self.took.append(now - began)
                del self._due[path]
        return self._path(name) not in self._due if name is not None else not self._due

    def _path(self, name: str) -> Path:
        return self._jobs.folder / f"{name}.starts"


def one_by_one(jobs: Jobs, count: int) -> list[float]:
    """SIGKILL jobs at random moments; seconds until each runs anew.

    The moments do not depend on the restarts: some supervisors look at their jobs at fixed intervals only.
    """
    chance = random.Random(1)
    killed = Killed(jobs)
    for number in range(count):
        name = jobs.names[number % len(jobs.names)]
        due = time.monotonic() + APART_S * (0.5 + chance.random())
        if not wait_for(lambda name=name, due=due: killed.back(name) and time.monotonic() > due, BACK_S):  # type: ignore[misc]
            raise RuntimeError(f"{name} did not start again")
        killed.kill(name)
    wait_for(killed.back, BACK_S)
    return killed.took


def all_at_once(jobs: Jobs) -> float:
    """SIGKILL every job; seconds until the last of them runs anew."""
    killed = Killed(jobs)
    for name in jobs.names:
        killed.kill(name)
    if not wait_for(killed.back, BACK_S):
        raise RuntimeError("not all jobs started again")
    return max(killed.took)


def of_supervisor(supervisor: Supervisor, jobs: Jobs) -> dict[str, int]:
    """SIGKILL the supervisor while its jobs run, let two of them end, and have it back."""
    before = {name: jobs.starts(name)[-1] for name in jobs.names}
    ending, staying = jobs.names[:ENDING], jobs.names[ENDING:]
    supervisor.kill()
    for name in ending:
        jobs.end(name)
    living = jobs.living()
    alive = sum(before[name] in living[name] for name in staying)
    supervisor.again()
    adopted = supervisor.adopted({name: before[name] for name in staying})
    codes = sum(supervisor.exit_code(name) == EXIT_CODE for name in ending)
    doubled = sum(max(0, len(pids) - 1) for pids in jobs.living().values())
    return {
        "staying": len(staying), "alive": alive, "adopted": len(adopted),
        "doubled": doubled, "ended": len(ending), "codes_kept": codes,
    }  # fmt: skip
