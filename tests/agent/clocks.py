"""Agents, shims and jobs whose wall clock a test can set, while the monotonic clock goes on."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("wallclock.c")


class Clock:
    """The wall clock of every Python that ``python`` names, as an offset in seconds to the true one.

    ``python`` looks like the interpreter of a virtual environment, so that what it starts as ``sys.executable`` is
    under the same clock.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler: apt-get install gcc libc6-dev")
        self.offsets: list[int] = []
        self.python = folder / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self._file = folder / "clock"
        self._file.write_bytes(bytes(struct.calcsize("l")))
        self.set(0)
        library = folder / "wallclock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE], check=True)
        home = Path(sys.executable).resolve()
        (folder / "pyvenv.cfg").write_text(f"home = {home.parent}\ninclude-system-site-packages = false\n")
        packages = Path(sysconfig.get_path("purelib"))
        place = folder / packages.relative_to(sys.prefix)
        place.parent.mkdir(parents=True)
        place.symlink_to(packages)
        # bash alone can give a program another name than its path: by it Python finds the environment's packages.
        self.python.write_text(
            f'#!/bin/bash\nexport LD_PRELOAD={library} WALL_CLOCK={self._file}\nexec -a "$0" {home} "$@"\n'
        )
        self.python.chmod(0o755)

    def set(self, offset: int) -> None:
        """Set it, as ``date`` would: seconds before or after the true time."""
        self.offsets.append(offset)
        with self._file.open("r+b") as file:
            file.write(struct.pack("l", offset))

    def now(self) -> float:
        """What it shows."""
        return time.time() + self.offsets[-1]
