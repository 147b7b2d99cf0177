"""The commands ``start`` and ``stop``: they print one line of JSON."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
import uuid
from pathlib import Path
from typing import Final

from pipeline.agent import locks, paths
from pipeline.agent.attempts.identity import Process, send
from pipeline.agent.launch import spawn_keeper, write_start_script

START_S: Final = 30.0
STOP_S: Final = 30.0
JOBS_STOP_S: Final = 300.0
"""Jobs have their own grace, and what they leave behind has it once more."""


def start(workdir: Path, runtime: Path) -> int:
    """Start keeper and agent unless they run; wait until the agent answers."""
    try:
        write_start_script(workdir)
    except OSError as error:
        return _say(error=f"cannot write {paths.agent_dir(workdir)}/start: {error.strerror}")
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
    return _say(error=f"no agent after {START_S:.0f} s; {log} ends with: {' '.join(last)}")


def stop(runtime: Path, *, jobs: bool) -> int:
    """Ask the agent to end; one that does not answer is signalled. Only an agent that answers can stop jobs."""
    asked = _post(runtime, jobs=jobs)
    if jobs and not asked:
        text = "the agent does not answer" if _running(runtime) else "no agent runs; start it first"
        return _say(error=f"the jobs were not all stopped: {text}; see agent.log in {runtime}")
    began = time.monotonic()
    running = _running(runtime)
    while running and time.monotonic() - began < STOP_S:
        if not asked or "agent" not in running or time.monotonic() - began > STOP_S / 2:
            # The keeper first, or it would start the agent again; one that was just being started was not told.
            send(running.get("keeper") or running["agent"], signal.SIGTERM)
        time.sleep(0.02)
        running = _running(runtime)
    return _say(error=f"still running: {', '.join(running)}" if running else "")


def _say(*, error: str) -> int:
    print(json.dumps({"ok": False, "error": error} if error else {"ok": True}), flush=True)
    return 1 if error else 0


def _running(runtime: Path) -> dict[str, Process]:
    found = {name: locks.holder(str(runtime / f"{name}.lock")) for name in ("keeper", "agent")}
    return {name: process for name, process in found.items() if process is not None}


class _Connection(http.client.HTTPConnection):
    """HTTP over the agent's socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("agent", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _post(runtime: Path, *, jobs: bool) -> bool:
    body = json.dumps({"by": "draftdeck stop", "request": uuid.uuid4().hex})
    connection = _Connection(runtime / "agent.sock", JOBS_STOP_S if jobs else STOP_S)
    try:
        connection.request("POST", "/v1/shutdown" + ("?jobs=stop" if jobs else ""), body)
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
