"""What a host is like, for ``draftdeck doctor``: looked at, never changed. Standard library only.

It is run from memory before anything was deployed (``console/link/onhost.py``), so a host that lacks what the agent
needs can still be told about. Each look that a dead mount or driver could hold up has a thread and a bound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from pipeline.agent import locks, paths
from pipeline.agent.attempts.secret_files import SecretRefused, read_secret
from pipeline.agent.host import cgroups, holes
from pipeline.agent.host.disks import Disk
from pipeline.agent.host.gpus import GpuWatch
from pipeline.agent.host.hoststats import HostSampler
from pipeline.protocol import Survey, SurveyedAgent, SurveyedDisk, SurveyQuestion

T = TypeVar("T")
WAIT_S: Final = 10.0
HUNG: Final = f"does not answer within {WAIT_S:.0f} s"
PTRACE_TRACEME: Final = 0
SCRIPT: Final = 1 << 16  # bytes of an entry point that are searched


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The survey that a question (``SurveyQuestion`` as JSON) asks for, as JSON."""
    return dataclasses.asdict(survey(SurveyQuestion(**question)))


def survey(question: SurveyQuestion) -> Survey:
    workdir = Path(question.workdir)
    disk = within(WAIT_S, lambda: look_at_disk(workdir), None)
    if disk is None:
        disk = SurveyedDisk(path=str(workdir), exists=False, kind="", refused=HUNG)
    gpus = GpuWatch()
    gpus.wait_first(WAIT_S)
    host = HostSampler(Disk(Path(disk.path))).sample(gpus.latest(), gpus.remarks())
    gpus.stop()
    return Survey(
        at=time.time(),
        user=f"{os.getuid()}",
        python=sys.executable,
        host=host,
        disk=disk,
        runtime=_runtime(workdir),
        cgroup=_cgroup(),
        pidfd=_pidfd(),
        ptrace=_ptrace(),
        first_environment=os.access("/proc/1/environ", os.R_OK) and _readable("/proc/1/environ"),
        shared_memory=_total("/dev/shm"),  # noqa: S108 - only looked at
        agent=_agent(workdir, disk),
        secrets={name: _secret(workdir, name) for name in question.secrets},
        paths={path: within(WAIT_S, lambda path=path: _path(workdir, path), HUNG) for path in question.paths},  # type: ignore[misc]
        ports={f"{host}:{port}": _port(host, port) for host, port in question.ports},
    )


def within(seconds: float, look: Callable[[], T], otherwise: T) -> T:
    """What ``look`` gives, ``otherwise`` where it takes longer; then its thread is left behind."""
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(look())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return found[0] if found else otherwise


# --- The disk ---------------------------------------------------------------------------------------------------------


def look_at_disk(workdir: Path) -> SurveyedDisk:
    """The file system of the work directory, or of the deepest folder above it that is there."""
    place = workdir
    while not place.is_dir() and place != place.parent:
        place = place.parent
    if workdir.exists() and not workdir.is_dir():
        return SurveyedDisk(str(workdir), exists=True, kind="", refused="it is not a folder")
    kind = paths.file_system(os.path.realpath(place))
    found = SurveyedDisk(str(place), place == workdir, kind, network=paths.on_network(os.path.realpath(place)))
    try:
        path = _scratch(place)
    except OSError as error:
        return dataclasses.replace(found, refused=error.strerror or str(error))
    try:
        handle = int(path.name)
        os.write(handle, b"x" * 2 * holes.BLOCK)
        try:
            holes.punch(handle, holes.BLOCK)
        except OSError as error:
            found = dataclasses.replace(found, no_holes=error.strerror or str(error))
    except OSError as error:
        found = dataclasses.replace(found, refused=error.strerror or str(error))
    finally:
        os.close(handle)
    return found


def _scratch(folder: Path) -> Path:
    """A file on a folder's file system that has no name there, as a path under /proc/self/fd."""
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
        handle, name = tempfile.mkstemp(prefix=".draftdeck-", dir=folder)  # a file system that knows no nameless files
        os.unlink(name)  # noqa: PTH108
    return Path(f"/proc/self/fd/{handle}")


def _total(folder: str) -> int | None:
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize
    return None


# --- What the kernel lets us do ---------------------------------------------------------------------------------------


def _cgroup() -> str:
    """Why jobs get no memory cgroup of their own, "" where they do."""
    folder, refused = cgroups.home(cgroups.find("memory"), look_only=True)
    if folder is None:
        return refused
    return "" if os.access(folder, os.W_OK) else f"{folder} cannot be written to"


def _pidfd() -> str:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _ptrace() -> str:
    """Why a debugger cannot look into a process of ours, "" where it can."""
    code = (
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
        f"os._exit(0 if libc.ptrace({PTRACE_TRACEME}, 0, None, None) == 0 else ctypes.get_errno())"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], timeout=WAIT_S, check=False)
    return os.strerror(done.returncode) if done.returncode > 0 else ""


def _readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            file.read(1)
    except OSError:
        return False
    return True


# --- The agent --------------------------------------------------------------------------------------------------------


def _runtime(workdir: Path) -> str:
    """Why the runtime folder cannot be used, "" where it can or is not there yet."""
    path = paths.runtime_path(workdir)
    try:
        paths.check_private(path)
    except FileNotFoundError:
        return "" if os.access("/tmp", os.W_OK) else "/tmp cannot be written to"  # noqa: S108
    except (OSError, paths.UnsafeFolderError) as error:
        return str(error)
    return ""


def _agent(workdir: Path, disk: SurveyedDisk) -> SurveyedAgent:
    if not disk.exists or disk.refused == HUNG:
        return SurveyedAgent()
    runtime = Path(paths.runtime_path(workdir))
    agent, keeper = (locks.holder(str(runtime / f"{name}.lock")) for name in ("agent", "keeper"))
    release = paths.current_release(workdir)
    start = Path(paths.agent_dir(workdir)) / "start"
    return SurveyedAgent(
        pid=agent.pid if agent is not None else None,
        keeper=keeper.pid if keeper is not None else None,
        release=release,
        deployed=bool(release) and (Path(paths.release_dir(workdir, release)) / "pipeline").is_dir(),
        start=str(start) if os.access(start, os.X_OK) else "",
        hook=_hook(str(start)),
        first=" ".join(_first_arguments())[:200],
    )


def _hook(start: str) -> str:
    """Where the start script is called from when the container starts; "" where nothing was found."""
    arguments = _first_arguments()
    if start in " ".join(arguments):
        return "the command line of pid 1"
    for argument in arguments:
        if _mentions(Path(argument), start):
            return argument
    for table in (Path("/etc/crontab"), *sorted(Path("/etc/cron.d").glob("*"))):
        if _mentions(table, start):
            return str(table)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["crontab", "-l"], capture_output=True, text=True, timeout=WAIT_S, check=False)
        if any("@reboot" in line and start in line for line in listed.stdout.splitlines() if line[:1] != "#"):
            return "crontab"
    return ""


def _first_arguments() -> list[str]:
    with contextlib.suppress(OSError):
        return [os.fsdecode(part) for part in Path("/proc/1/cmdline").read_bytes().split(b"\0") if part]
    return []


def _mentions(file: Path, text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if file.is_absolute() and file.is_file():
            with file.open("rb") as opened:
                return os.fsencode(text) in opened.read(SCRIPT)
    return False


# --- What the config names --------------------------------------------------------------------------------------------


def _secret(workdir: Path, name: str) -> str:
    """Where a secret's value is: "file", "pid 1", "" for nowhere, else why it is not used."""
    try:
        if read_secret(paths.runtime_path(workdir), name) is not None:
            return "file"
    except (SecretRefused, OSError, ValueError) as error:
        return str(error)
    with contextlib.suppress(OSError):
        if any(pair.startswith(f"{name}=".encode()) for pair in Path("/proc/1/environ").read_bytes().split(b"\0")):
            return "pid 1"
    return ""


def _path(workdir: Path, path: str) -> str:
    """What is there: "model" for a folder with a config.json, "folder", "file", "" for nothing."""
    place = workdir / path
    if (place / "config.json").is_file():
        return "model"
    return "folder" if place.is_dir() else "file" if place.exists() else ""


def _port(host: str, port: int) -> str:
    """Why nothing could listen there, "" where a server could."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed just now is no hindrance
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""
