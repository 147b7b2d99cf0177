"""``python -m pipeline.agent COMMAND --workdir W``: start, run, keeper, bridge, secret, stop."""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Final

from pipeline.agent import locks, paths
from pipeline.agent.identity import send

START_S: Final = 30.0
STOP_S: Final = 30.0


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.agent", description="The supervisor of one work directory."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "start": "make sure that the agent runs; prints JSON: ok, pid",
        "run": "be the agent",
        "keeper": "be the keeper, which starts the agent again when it dies",
        "bridge": "connect stdin and stdout to the agent's socket",
        "secret": "keep a secret: its value is read from stdin",
        "stop": "end agent and keeper; jobs go on",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--workdir", type=Path, required=True)
        if name == "bridge":
            command.add_argument("--read-only", action="store_true")
        if name == "secret":
            command.add_argument("action", choices=["set"])
            command.add_argument("name", metavar="NAME")
        if name == "stop":
            command.add_argument("--jobs", action="store_true", help="stop the jobs too")
    options = parser.parse_args(argv)
    workdir = options.workdir.resolve()
    if options.command == "bridge":
        from pipeline.agent import bridge

        return bridge.main(str(workdir), read_only=options.read_only)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        runtime = Path(paths.runtime_dir(workdir))
    except (OSError, paths.UnsafeFolderError) as error:
        print(json.dumps({"ok": False, "error": str(error)}))
        return 1
    if options.command == "start":
        return start(workdir, runtime)
    if options.command == "run":
        return run(workdir, runtime)
    if options.command == "keeper":
        from pipeline.agent import keeper

        return keeper.main(str(workdir))
    if options.command == "secret":
        return set_secret(runtime, options.name)
    return stop(runtime, jobs=options.jobs)


def start(workdir: Path, runtime: Path) -> int:
    """Start keeper and agent unless they run; wait until the agent answers."""
    from pipeline.agent.launch import spawn_keeper, write_start_script

    write_start_script(workdir)
    began = time.monotonic()
    lock = str(runtime / "agent.lock")
    if locks.holder(lock) is None or locks.holder(str(runtime / "keeper.lock")) is None:
        spawn_keeper(workdir, runtime)
    while time.monotonic() - began < START_S:
        agent = locks.holder(lock)
        if agent is not None and _answers(runtime):
            print(json.dumps({"ok": True, "pid": agent.pid}), flush=True)
            return 0
        time.sleep(0.02)
    log = runtime / "agent.log"
    last = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
    print(json.dumps({"ok": False, "error": f"no agent after {START_S:.0f} s; {log} ends with: {' '.join(last)}"}))
    return 1


def run(workdir: Path, runtime: Path) -> int:
    """Be the agent; exits 0 at once when there is one."""
    # The lock comes before the heavy imports, so that a second agent costs little and the keeper soon sees this one.
    if locks.take(str(runtime / "agent.lock")) is None:
        return 0
    from pipeline.agent.daemon import main as serve

    return serve(workdir, runtime)


def set_secret(runtime: Path, name: str) -> int:
    """Keep the value on stdin (one trailing newline is dropped) under ``name``."""
    from pipeline.agent.environment import SecretRefused, write_secret

    value = sys.stdin.read()
    try:
        write_secret(runtime, name, value.removesuffix("\n"))
    except (ValueError, OSError, SecretRefused) as error:
        print(json.dumps({"ok": False, "error": str(error)}))
        return 1
    print(json.dumps({"ok": True}))
    return 0


def stop(runtime: Path, *, jobs: bool) -> int:
    """Ask the agent to end; one that does not answer is signalled."""
    body = json.dumps({"by": "draftdeck stop", "request": uuid.uuid4().hex})
    asked = _post(runtime, "/v1/shutdown" + ("?jobs=stop" if jobs else ""), body)
    began = time.monotonic()
    while time.monotonic() - began < STOP_S:
        left = {name: locks.holder(str(runtime / f"{name}.lock")) for name in ("keeper", "agent")}
        running = {name: process for name, process in left.items() if process is not None}
        if not running:
            print(json.dumps({"ok": True}))
            return 0
        if not asked or time.monotonic() - began > STOP_S / 2:
            # The keeper first, or it would start the agent again.
            send(running.get("keeper") or running["agent"], signal.SIGTERM)
        time.sleep(0.05)
    print(json.dumps({"ok": False, "error": f"still running: {', '.join(running)}"}))
    return 1


class _Connection(http.client.HTTPConnection):
    """HTTP over the agent's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=STOP_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _post(runtime: Path, path: str, body: str) -> bool:
    connection = _Connection(runtime / "agent.sock")
    try:
        connection.request("POST", path, body)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _answers(runtime: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(runtime / "agent.sock"))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
