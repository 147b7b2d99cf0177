"""Starts the agent again whenever it has died. Run as ``python -I -S keeper.py --workdir W``; standard library only.

The agent does the same for the keeper, so that either may be killed at any moment. SIGTERM ends the keeper for good.
With ``--check`` it only shows that it could be imported.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import ctypes
import select
import signal
import time

from pipeline.agent import locks, own_log, paths
from pipeline.agent.attempts.identity import Process, open_pidfd, read_stat

PR_SET_NAME = 15
START_S = 15.0  # an agent has its lock long before
HEALTHY_S = 10.0
LOOK_S = 2.0  # how often the lock is looked after
DELAY_S = 0.2
DELAY_MAX_S = 10.0
ENDED_VARIABLE = "DRAFTDECK_AGENT_ENDED"  # how the agent before ended, in words


def main(workdir: str) -> int:
    """Keep the agent of ``workdir`` alive until SIGTERM."""
    runtime = paths.runtime_dir(workdir)
    keeping = Keeping(workdir)
    if not keeping.keep():
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"draftdeck-keep", 0, 0, 0)
    os.chdir("/")  # whatever folder this was started in may be unmounted
    lock = os.path.join(runtime, "agent.lock")
    failures, how = 0, ""
    while True:
        began = time.monotonic()
        agent = locks.holder(lock)
        if agent is None:
            try:
                follow_release(workdir)
                say(f"starting the agent of {workdir}")
                wait_started(start_agent(workdir, runtime, how), lock)
            except OSError as error:  # no processes left, or no disk
                say(f"the agent cannot be started: {error}")
            agent = locks.holder(lock)
        while agent is not None and not ended_within(agent, LOOK_S):
            keep_log(runtime)
            if not keeping.keep():
                return 0
        keep_log(runtime)
        how = collect()
        words = last_words(runtime) if how.startswith("exit code") else ""
        say(f"the agent has ended: {how or 'not a child of this keeper'}{words}")
        # One that was killed, or left by itself, is replaced at once; one that fails at its start would make this spin.
        short = time.monotonic() - began < HEALTHY_S
        failed = agent is None or (how.startswith("exit code") and how != "exit code 0" and short)
        failures = failures + 1 if failed else 0
        if failures:
            delay = min(DELAY_MAX_S, DELAY_S * 2**failures)
            say(f"the next one starts in {delay:.1f} s")
            time.sleep(delay)
        if not keeping.keep():
            return 0


class Keeping:
    """The keeper's lock. A cleaner of /tmp may remove its file, or the folder: then it is taken anew."""

    def __init__(self, workdir: str) -> None:
        self.workdir = workdir
        self.lock: int | None = None
        self.trouble = ""

    def keep(self) -> bool:
        """Hold the lock; False when another keeper does."""
        try:
            path = os.path.join(paths.runtime_dir(self.workdir), "keeper.lock")
            if self.lock is None or not locks.holds(self.lock, path):
                if self.lock is not None:
                    os.close(self.lock)
                    self.lock = None
                self.lock = locks.take(path)
            self.trouble = ""
        except (OSError, paths.UnsafeFolderError) as error:
            if str(error) != self.trouble:
                say(f"the lock cannot be kept: {error}")
            self.trouble = str(error)
            return True
        return self.lock is not None


def ended_within(agent: Process, seconds: float) -> bool:
    """Wait for the end of the agent, but no longer than that; whether it has ended."""
    handle = open_pidfd(agent)
    if handle is None:
        return True
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(handle)


def start_agent(workdir: str, runtime: str, how: str) -> int:
    """Start an agent in a session of its own; its pid. ``how``: the one before ended, as far as was seen."""
    log = os.path.join(runtime, "agent.log")
    environment = {**os.environ, "PYTHONPATH": paths.code_root(workdir), ENDED_VARIABLE: how}
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "pipeline.agent", "run", "--workdir", workdir],
        environment,
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def wait_started(pid: int, lock: str) -> None:
    """Return when an agent has the lock or the one just started has ended."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if locks.holder(lock) is not None:
            return
        stat = read_stat(pid)
        if stat is None or stat[0] in "ZX":
            return
        time.sleep(0.02)


def follow_release(workdir: str) -> None:
    """Become the keeper of the current release when that is another than this one's, and its keeper works."""
    root = paths.code_root(workdir)
    if root == paths.own_root():
        return
    script = os.path.join(root, "pipeline", "agent", "keeper.py")
    command = [sys.executable, "-I", "-S", script, "--workdir", workdir]
    _, status = os.waitpid(os.posix_spawn(sys.executable, [*command, "--check"], {**os.environ}), 0)
    if os.waitstatus_to_exitcode(status) == 0:
        os.execv(sys.executable, command)  # noqa: S606
    say(f"the keeper of {root} does not start; this one stays")


def collect() -> str:
    """Reap agents that were children of this process; how the last of them ended, in words; "" where none was."""
    how = ""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return how
            code = os.waitstatus_to_exitcode(status)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
    except ChildProcessError:
        return how


def last_words(runtime: str) -> str:
    """The last line of the agent's log, as a remark."""
    try:
        with open(os.path.join(runtime, "agent.log"), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1000))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((f"; its log ends with: {line}" for line in reversed(lines) if line.strip()), "")


def keep_log(runtime: str) -> None:
    """Keep the keeper's own log within its cap."""
    try:
        own_log.keep(os.path.join(runtime, "keeper.log"))
    except OSError as error:
        say(f"a new log cannot be begun: {error}")


def say(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


if __name__ == "__main__" and "--check" not in sys.argv:
    sys.exit(main(os.path.realpath(sys.argv[sys.argv.index("--workdir") + 1])))
