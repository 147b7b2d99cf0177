"""The supervisors people use, installed into ``.bench/`` on first use and driven as their users drive them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import psutil

from benchmarks.supervision.jobs import Jobs, wait_for

FOLDER: Final = Path(__file__).resolve().parents[2] / ".bench"
PYTHON_PEERS: Final = ("supervisor==4.3.0", "circus==0.19.0", "setuptools<81")  # supervisor imports pkg_resources
NODE_PEER: Final = "pm2@7"
ASK_SUPERVISORD: Final = """
import json, sys, xmlrpc.client
from supervisor.xmlrpc import SupervisorTransport
server = xmlrpc.client.ServerProxy("http://localhost", SupervisorTransport(serverurl="unix://" + sys.argv[1]))
print(json.dumps({row["name"]: [row["pid"], row["exitstatus"]] for row in server.supervisor.getAllProcessInfo()}))
"""

# Its own command asks for one job at a time. It publishes exit codes when it sees them, and keeps none.
ASK_CIRCUS: Final = """
import json, sys
from circus.client import CircusClient
client = CircusClient(endpoint=sys.argv[1], timeout=5)
pids = {name: client.send_message("list", name=name)["pids"] for name in client.send_message("list")["watchers"]}
print(json.dumps({name: [found[0] if found else 0, None] for name, found in pids.items()}))
"""


class Supervisor(Protocol):
    """What is measured of every supervisor."""

    title: str
    revived: bool
    """Whether a killed supervisor comes back by itself."""

    def start(self, jobs: Jobs) -> None:
        """Start the supervisor with its jobs; returns when all of them run."""

    def processes(self) -> Mapping[str, list[int]]:
        """The pids of the supervisor's own processes, by what they are."""

    def kill(self) -> None:
        """SIGKILL the supervisor's main process."""

    def again(self) -> None:
        """Have it back: wait for it, or start it as its user would. Returns when it answers."""

    def adopted(self, before: Mapping[str, int]) -> set[str]:
        """The jobs of ``before`` that it calls running by the very pid they ran by then."""

    def exit_code(self, name: str) -> int | None:
        """What it says of the end of a job that ended while it was away."""

    def ends_recorded_first(self, jobs: Jobs) -> int | None:
        """How many kills of jobs were on disk before the job started again; None where none is kept on disk."""

    def close(self) -> None:
        """End the supervisor."""


class Peer:
    """What the peers have in common: one process, which nobody brings back."""

    title = ""
    revived = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = 0

    def processes(self) -> Mapping[str, list[int]]:
        return {"daemon": [self.pid]}

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        wait_for(lambda: not psutil.pid_exists(self.pid))

    def start(self, jobs: Jobs) -> None:
        self.configure(jobs)
        self.again()
        if not wait_for(jobs.all_started):
            raise RuntimeError(f"{self.title} does not start its jobs")

    def configure(self, jobs: Jobs) -> None:
        raise NotImplementedError

    def again(self) -> None:
        raise NotImplementedError

    def told(self) -> dict[str, tuple[int, int | None]]:
        """What it says of each job: the pid it runs by, 0 for none, and the exit code of its last end."""
        raise NotImplementedError

    def adopted(self, before: Mapping[str, int]) -> set[str]:
        found: dict[str, tuple[int, int | None]] = {}

        def complete() -> bool:
            nonlocal found
            found = self.told()
            return all(found.get(name, (0, None))[0] for name in before)

        wait_for(complete, 15)
        return {name for name, pid in before.items() if found[name][0] == pid}

    def ends_recorded_first(self, _: Jobs) -> int | None:
        return None

    def exit_code(self, name: str) -> int | None:
        return self.told()[name][1]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()


class Supervisord(Peer):
    title = "supervisord 4.3.0"

    def configure(self, jobs: Jobs) -> None:
        socket_path = self.folder / "supervisor.sock"
        parts = [
            f"[supervisord]\nnodaemon=true\nlogfile={self.folder}/log\npidfile={self.folder}/pid\n",
            f"[unix_http_server]\nfile={socket_path}\n",
            f"[supervisorctl]\nserverurl=unix://{socket_path}\n",
            "[rpcinterface:supervisor]\n"
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface\n",
        ]
        for name in jobs.names:
            command = " ".join(jobs.argv(name))
            parts.append(f"[program:{name}]\ncommand={command}\nautorestart=true\nstartretries=1000\n")
        (self.folder / "supervisord.conf").write_text("\n".join(parts))

    def again(self) -> None:
        (self.folder / "supervisor.sock").unlink(missing_ok=True)
        self.pid = _daemon(FOLDER / "python/bin/supervisord", "-n", "-c", self.folder / "supervisord.conf")
        wait_for(lambda: bool(self.told()))

    def told(self) -> dict[str, tuple[int, int | None]]:
        return _ask(ASK_SUPERVISORD, self.folder / "supervisor.sock")


class Circus(Peer):
    title = "circus 0.19.0"

    def configure(self, jobs: Jobs) -> None:
        parts = [f"[circus]\nendpoint = ipc://{self.folder}/control\npubsub_endpoint = ipc://{self.folder}/events\n"]
        parts += [f"[watcher:{name}]\ncmd = {' '.join(jobs.argv(name))}\nmax_retry = -1\n" for name in jobs.names]
        (self.folder / "circus.ini").write_text("\n".join(parts))

    def again(self) -> None:
        self.pid = _daemon(FOLDER / "python/bin/circusd", self.folder / "circus.ini")
        wait_for(lambda: bool(self.told()))

    def told(self) -> dict[str, tuple[int, int | None]]:
        return _ask(ASK_CIRCUS, f"ipc://{self.folder}/control")


class Pm2(Peer):
    title = "pm2 7.0"

    def configure(self, jobs: Jobs) -> None:
        apps = [
            {
                "name": name, "script": jobs.argv(name)[0], "args": list(jobs.argv(name)[1:]), "interpreter": "none",
                "exec_mode": "fork", "max_restarts": 1000,
            }
            for name in jobs.names
        ]  # fmt: skip
        (self.folder / "apps.json").write_text(json.dumps({"apps": apps}))

    def again(self) -> None:
        self._call("start", str(self.folder / "apps.json"))
        self.pid = int((self.folder / "pm2/pm2.pid").read_text())

    def told(self) -> dict[str, tuple[int, int | None]]:
        text = self._call("jlist")
        rows = json.loads(text[text.index("[{") :]) if "[{" in text else []
        found = {}
        for row in rows:
            online = row["pm2_env"]["status"] == "online"
            found[row["name"]] = (int(row["pid"]) if online else 0, row["pm2_env"].get("exit_code"))
        return found

    def _call(self, *arguments: str) -> str:
        argv = ["node", str(FOLDER / "pm2/node_modules/pm2/bin/pm2"), *arguments]
        home = {**os.environ, "PM2_HOME": str(self.folder / "pm2")}
        return subprocess.run(argv, env=home, capture_output=True, text=True, check=False, timeout=120).stdout


def _daemon(*argv: str | Path) -> int:
    """Start a daemon in a session of its own; its pid."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, stdout=quiet, stderr=quiet, start_new_session=True).pid


def _ask(script: str, endpoint: str | Path) -> dict[str, tuple[int, int | None]]:
    """Run a script with the peer's own client library; nothing while the peer does not answer."""
    argv = [str(FOLDER / "python/bin/python"), "-W", "ignore", "-c", script, str(endpoint)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return {name: (pid, code) for name, (pid, code) in found.items()}


def available() -> Iterator[type[Peer]]:
    """The peers that are here or can be installed; of the others it says why not."""
    try:
        _install_python()
        yield from (Supervisord, Circus)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"without supervisord and circus: {error}", flush=True)
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("without pm2: there is no node here", flush=True)
        return
    try:
        _install_node()
        yield Pm2
    except (OSError, subprocess.SubprocessError) as error:
        print(f"without pm2: {error}", flush=True)


def _install_python() -> None:
    folder = FOLDER / "python"
    if not (folder / "bin/circusd").exists():
        print(f"installing {', '.join(PYTHON_PEERS[:2])} into {FOLDER.name}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "--quiet", *PYTHON_PEERS], check=True)


def _install_node() -> None:
    folder = FOLDER / "pm2"
    if not (folder / "node_modules/pm2/bin/pm2").exists():
        print(f"installing {NODE_PEER} into {FOLDER.name}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        argv = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", NODE_PEER]
        subprocess.run(argv, check=True)
