"""``python -m pipeline.demo.container --dir D``: the loopback container of the demo, started, found again or ended.

It goes on by itself, like a container does, until ``--stop``; processes that were started in it and detached themselves
go on even then. ``D/container.json`` says how to reach it. Its port and keys stay the same from one start to the next.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.agent.attempts import identity
from pipeline.demo import sshserver
from pipeline.files import write_atomically

START_TIMEOUT_S = 45.0  # a busy machine starts Python slowly
_PAUSE_S = 0.05


@dataclass(frozen=True)
class Container:
    """``container.json``: how to reach the container, and which process serves it."""

    port: int
    user: str
    key: str
    known_hosts: str
    pid: int
    start: int  # kernel start time of that process, in clock ticks since boot


def read(folder: Path) -> Container | None:
    """What ``container.json`` says, whether or not it still runs; None where there is none or it is damaged."""
    try:
        return msgspec.json.decode((folder / "container.json").read_bytes(), type=Container)
    except (OSError, msgspec.MsgspecError):
        return None


def running(folder: Path) -> Container | None:
    """The container of ``folder`` if it serves now."""
    container = read(folder)
    if container is None or not _locked(folder):
        return None
    return container if identity.alive(identity.Process(container.pid, container.start)) else None


def start(folder: Path) -> Container:
    """Start the container in the background, or find the one that runs. Raises ``RuntimeError`` with its last words."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_path = folder / "container.log"
    with log_path.open("ab") as log:
        argv = [sys.executable, "-m", "pipeline.demo.container", "--dir", str(folder), "--foreground"]
        process: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if (found := running(folder)) is not None:
                if process is not None and process.pid != found.pid:
                    process.kill()  # or it would serve as soon as this one is stopped
                    process.wait()
                return found
            # Two that start at once are sorted out by the lock: one serves, the other ends with code 0.
            if process is None or process.poll() == 0:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            elif process.poll() is not None:
                break
            time.sleep(_PAUSE_S)
    words = log_path.read_text(errors="replace").strip().splitlines()
    raise RuntimeError(f"the loopback container did not start: {words[-1] if words else 'no message'} (see {log_path})")


def stop(folder: Path) -> bool:
    """End the SSH server and its connections, nothing else. False where none ran."""
    container = running(folder)
    if container is None:
        return False
    process = identity.Process(container.pid, container.start)
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        identity.send(process, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not identity.alive(process):
                return True
            time.sleep(_PAUSE_S)
    return True


async def serve(folder: Path) -> None:
    """Serve until SIGTERM or SIGINT. Returns at once where another process serves this folder, which must exist."""
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        keys = sshserver.make_keys(folder)
        before = read(folder)
        try:
            acceptor = await sshserver.listen(keys, before.port if before else 0)
        except OSError:
            if before is None:
                raise
            acceptor = await sshserver.listen(keys, 0)  # somebody took the port in between
        me = identity.identify(os.getpid())
        assert me is not None
        container = Container(
            acceptor.get_port(), sshserver.user_name(), str(keys.user_key), str(keys.known_hosts), me.pid, me.start
        )
        write_atomically(folder / "container.json", msgspec.json.format(msgspec.json.encode(container)) + b"\n")
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        await ended.wait()
        acceptor.close()


def _locked(folder: Path) -> bool:
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.demo.container", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="the container's folder; made if missing")
    parser.add_argument("--stop", action="store_true", help="end the SSH server; detached processes go on")
    parser.add_argument("--foreground", action="store_true", help="serve in this process until SIGTERM")
    given = parser.parse_args(arguments)
    folder = given.dir.absolute()
    if given.stop:
        print("ended" if stop(folder) else "was not running")
        return 0
    if given.foreground:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        asyncio.run(serve(folder))
        return 0
    try:
        container = start(folder)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(msgspec.json.encode(container).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
