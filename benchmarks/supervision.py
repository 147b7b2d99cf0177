"""Sixteen jobs under Draftdeck's agent and under supervisord: a job is killed, then the supervisor itself.

How long until a killed job runs again; and when the supervisor is killed and one is there again, how many jobs live,
how many it knows again, how many run twice, and of how many that ended meanwhile it knows the exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from pipeline.protocol import JobSpec, JobState, RestartPolicy
from tests.agent.rig import Rig

JOBS: Final = 16
PEER: Final = ("supervisor==4.3.0", "setuptools<81")  # supervisor imports pkg_resources
PEER_FOLDER: Final = Path(__file__).resolve().parents[1] / ".bench"

# Each start of a job leaves its pid; exit code 7 when told to end by the file "end".
SCRIPT: Final = 'echo $$ >> "{folder}/{name}.starts"; while [ ! -e "{folder}/end.{name}" ]; do sleep 0.2; done; exit 7'


@dataclass(frozen=True)
class Outcome:
    """What one supervisor did. Times in milliseconds."""

    restart_p50: float
    restart_max: float
    alive: int
    known: int
    processes: int
    exit_codes: int

    def row(self, name: str) -> str:
        return (
            f"| {name} | {self.restart_p50:.0f} / {self.restart_max:.0f} ms | {self.alive} of {JOBS} "
            f"| {self.known} of {JOBS} | {self.processes - self.alive} | {self.exit_codes} of 2 |"
        )


def measure() -> dict[str, Any]:
    """Run both, print the table, and return the figures."""
    outcomes = {"draftdeck": asyncio.run(draftdeck()), "supervisord 4.3.0": supervisord()}
    killed = "job SIGKILLed → runs again, p50 / max"
    print(f"| | {killed} | supervisor SIGKILLed: jobs alive | known again | started twice | exit codes known |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, outcome in outcomes.items():
        print(outcome.row(name))
    return {"jobs": JOBS, "outcomes": {name: vars(outcome) for name, outcome in outcomes.items()}}


def starts(folder: Path, name: str) -> list[int]:
    path = folder / f"{name}.starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def names() -> list[str]:
    return [f"job{number}" for number in range(JOBS)]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether ``condition`` came to hold; looked at every millisecond, alike for all supervisors."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def kill_jobs(folder: Path) -> list[float]:
    """Kill every job once, one after the other; milliseconds until each runs again. A second crash would back off."""
    took = []
    for name in names():
        before = starts(folder, name)
        began = time.monotonic()
        os.kill(before[-1], signal.SIGKILL)
        assert wait_for(lambda name=name, before=before: len(starts(folder, name)) > len(before)), name  # type: ignore[misc]
        took.append((time.monotonic() - began) * 1000)
    return took


def running(folder: Path) -> int:
    """How many processes of jobs there are: shells with this folder's jobs in their command line."""
    lines = [process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])]
    return sum(line[0] == "/bin/sh" and f"{folder}/job" in " ".join(line) for line in lines)


async def draftdeck() -> Outcome:
    os.environ["SHELL"] = "/bin/sh"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rig = Rig(folder / "work")
        try:
            await rig.start()
            policy = RestartPolicy(when="always", limit=1000)
            jobs = [
                JobSpec(name, "demo", ("/bin/sh", "-c", SCRIPT.format(folder=folder, name=name)), restart=policy)
                for name in names()
            ]
            await rig.apply(*jobs)
            await asyncio.to_thread(wait_for, lambda: all(starts(folder, name) for name in names()))
            took = await asyncio.to_thread(kill_jobs, folder)
            attempts = {name: (await rig.status(name)).attempt for name in names()}
            agent = rig.holder("agent")
            assert agent is not None
            os.kill(agent.pid, signal.SIGKILL)
            for name in names()[:2]:
                (folder / f"end.{name}").touch()
            await rig.replaced("agent", agent, within=30)
            await rig.start()
            alive = running(folder)
            codes = [await ended_with(rig, name, attempts[name]) for name in names()[:2]]
            state = await rig.state()
            known = sum(
                status.state in (JobState.RUNNING, JobState.BACKOFF, JobState.STARTING) or name in names()[:2]
                for name, status in state.jobs.items()
            )
            return outcome(took, alive + 2, known, running(folder) + 2, sum(code == 7 for code in codes))
        finally:
            await rig.close()


async def ended_with(rig: Rig, name: str, attempt: int) -> int | None:
    """The exit code that the agent names for an attempt."""
    for _ in range(600):
        answer = (await rig.client.get(f"/v1/jobs/{name}")).json()
        for one in answer["attempts"]:
            if one["number"] == attempt and one.get("ended_at") is not None:
                code: int | None = one["exit_code"]
                return code
        await asyncio.sleep(0.05)
    return None


def outcome(took: list[float], alive: int, known: int, processes: int, codes: int) -> Outcome:
    return Outcome(round(statistics.median(took), 1), round(max(took), 1), alive, known, processes, codes)


def supervisord() -> Outcome:
    program = peer() / "supervisord"
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        config = folder / "supervisord.conf"
        sections = [f"[supervisord]\nnodaemon=true\nlogfile={folder}/log\npidfile={folder}/pid\n"]
        sections += [f"[unix_http_server]\nfile={folder}/sock\n", f"[supervisorctl]\nserverurl=unix://{folder}/sock\n"]
        sections.append(
            "[rpcinterface:supervisor]\nsupervisor.rpcinterface_factory = "
            "supervisor.rpcinterface:make_main_rpcinterface\n"
        )
        for name in names():
            script = folder / f"{name}.sh"
            script.write_text(SCRIPT.format(folder=folder, name=name) + "\n")
            command = f"/bin/sh -c '. {script}'"
            sections.append(f"[program:{name}]\ncommand={command}\nautorestart=true\nstartretries=1000\n")
        config.write_text("\n".join(sections))

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([program, "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        daemon = start()
        stack.callback(clean_up, folder)
        assert wait_for(lambda: all(starts(folder, name) for name in names()))
        time.sleep(1.2)
        took = kill_jobs(folder)
        before = {name: len(starts(folder, name)) for name in names()}
        daemon.kill()
        daemon.wait()
        for name in names()[:2]:
            (folder / f"end.{name}").touch()
        time.sleep(0.5)
        alive = running(folder) + 2
        (folder / "sock").unlink(missing_ok=True)
        daemon = start()
        stack.callback(daemon.kill)
        # It knows none of them: all are started again.
        wait_for(lambda: all(len(starts(folder, name)) > before[name] for name in names()[2:]), 20)
        processes = running(folder) + 2
        known = sum(len(starts(folder, name)) == before[name] for name in names()[2:])
        return outcome(took, alive, known, processes, 0)


def clean_up(folder: Path) -> None:
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or []) and process.pid != os.getpid():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def peer() -> Path:
    """The folder of the peer's programs, installed on first use into an environment of its own."""
    binaries = PEER_FOLDER / "bin"
    if not (binaries / "supervisord").exists():
        print(f"installing {PEER[0]} into {PEER_FOLDER.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEER_FOLDER)], check=True)
        subprocess.run([str(binaries / "pip"), "install", "--quiet", *PEER], check=True)
    return binaries
