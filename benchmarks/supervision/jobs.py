"""The jobs that run under every supervisor: one process each, which costs nothing until it is told to end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXIT_CODE: Final = 7

# Reads from a FIFO inside the shell: nothing is forked. Each start leaves the job's pid.
SCRIPT: Final = 'echo $$ >> "{folder}/{name}.starts"; read code < "{folder}/{name}.fifo"; exit $code\n'


@dataclass(frozen=True)
class Jobs:
    """Jobs by name, in a folder of their own."""

    folder: Path
    names: tuple[str, ...]

    @staticmethod
    def make(folder: Path, count: int) -> Jobs:
        jobs = Jobs(folder, tuple(f"job{number}" for number in range(count)))
        for name in jobs.names:
            (folder / f"{name}.sh").write_text(SCRIPT.format(folder=folder, name=name))
            os.mkfifo(folder / f"{name}.fifo")
        return jobs

    def argv(self, name: str) -> tuple[str, ...]:
        return ("/bin/sh", f"{self.folder}/{name}.sh")

    def starts(self, name: str) -> list[int]:
        """The pids of all starts of a job so far, oldest first."""
        path = self.folder / f"{name}.starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def living(self) -> dict[str, list[int]]:
        """The pids of all processes of each job."""
        found: dict[str, list[int]] = {name: [] for name in self.names}
        known = {"\0".join(self.argv(name)).encode() + b"\0": name for name in self.names}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    name = known.get(Path(entry.path, "cmdline").read_bytes())
                    if name is not None:
                        found[name].append(int(entry.name))
        return found

    def all_started(self) -> bool:
        return all(self.starts(name) for name in self.names)

    def end(self, name: str) -> None:
        """Let a job end with ``EXIT_CODE``; returns when its process has gone."""
        pid = self.starts(name)[-1]
        handle = os.open(self.folder / f"{name}.fifo", os.O_WRONLY)
        os.write(handle, f"{EXIT_CODE}\n".encode())
        os.close(handle)
        wait_for(lambda: pid not in self.living()[name])

    def clean_up(self) -> None:
        """Kill what is left of them."""
        while found := [pid for pids in self.living().values() for pid in pids]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether ``condition`` came to hold; looked at every millisecond, alike for all supervisors."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
