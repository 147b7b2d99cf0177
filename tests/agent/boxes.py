"""Real cgroups for tests: a parent with a memory limit, and processes and agents that live in it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.agent import paths
from pipeline.agent.host import cgroups
from tests.agent.rig import Rig
from tests.agent.rig import until as until_async
from tests.agent.sensing import until

_COUNT = itertools.count()

GREEDY = "exec python3 -I -S -c 'held = [bytearray(1 << 20) for _ in range(%d)]; import time; time.sleep(600)'"
"""A shell script that takes so many MiB and keeps them."""


def memory_home() -> Path:
    """Where memory cgroups of version 1 can be made; skips the test where they cannot."""
    group = cgroups.find("memory")
    if group is None or group.version != 1:
        pytest.skip("no memory cgroup of version 1 here")
    if not os.access(group.folder, os.W_OK):
        pytest.skip("memory cgroups cannot be made here: not root, or a read-only mount")
    return group.folder


@contextmanager
def box(limit: str = "") -> Iterator[Path]:
    """A memory cgroup below our own; everything in it is killed at the end."""
    folder = memory_home() / f"ddtest-{os.getpid()}-{next(_COUNT)}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"memory cgroups cannot be made here: {error.strerror}")
    if limit:
        (folder / "memory.limit_in_bytes").write_text(limit)
    try:
        yield folder
    finally:
        empty(folder)


def empty(folder: Path) -> None:
    """Kill what is in a cgroup and those below it, and remove them. An agent in it may remove some meanwhile."""

    def gone() -> bool:
        with contextlib.suppress(FileNotFoundError):
            for below in [path for path in folder.iterdir() if path.is_dir()]:
                empty(below)
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        with contextlib.suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    until(gone)


def run_in(folder: Path, code: str) -> subprocess.Popen[bytes]:
    """A Python process in a cgroup."""
    enter = f"import os; open({str(folder / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); import sys\n"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", enter + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


async def start_in(rig: Rig, folder: Path, before: str = "") -> None:
    """Start a rig's keeper, and with it its agent and jobs, in a cgroup and a mount namespace of its own.

    ``before`` is a shell command that is run in them first.
    """
    keeper = [sys.executable, "-I", "-S", str(Path(paths.code_root(rig.workdir)) / "pipeline/agent/keeper.py")]
    script = f'echo $$ > {folder}/cgroup.procs; {before or ":"} && exec "$@"'
    with (rig.runtime / "keeper.log").open("ab") as log:
        await asyncio.create_subprocess_exec(
            "unshare", "--mount", "sh", "-c", script, "sh", *keeper, "--workdir", str(rig.workdir),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    await until_async(lambda: rig.holder("keeper"), what="a keeper in the cgroup")
    await rig.start()


NO_CGROUPS = (
    "mount --bind /sys/fs/cgroup/memory /sys/fs/cgroup/memory && mount -o remount,bind,ro /sys/fs/cgroup/memory"
)
"""For ``start_in``: the mount is read-only, as it is in most containers."""

NO_LOWERING = 'set -- setpriv --bounding-set=-sys_resource "$@"'
"""For ``start_in``: root may not lower oom_score_adj, as in most containers."""
