"""Starts the agent again whenever it has died. Run as ``python -I -S keeper.py --workdir W``; standard library only.

The agent does the same for the keeper, so that either may be killed at any moment. SIGTERM ends the keeper for good.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import ctypes
import select
import signal
import time

from pipeline.agent import locks, paths
from pipeline.agent.identity import Process, open_pidfd, read_stat

PR_SET_NAME = 15
START_S = 15.0  # an agent has its lock long before
HEALTHY_S = 10.0
DELAY_S = 0.2
DELAY_MAX_S = 10.0
LOG_LIMIT = 4 << 20


def main(workdir: str) -> int:
    """Keep the agent of ``workdir`` alive until SIGTERM."""
    runtime = paths.runtime_dir(workdir)
    if locks.take(os.path.join(runtime, "keeper.lock")) is None:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"draftdeck-keep", 0, 0, 0)
    os.chdir("/")  # whatever folder this was started in may be unmounted
    lock = os.path.join(runtime, "agent.lock")
    failures = 0
    while True:
        began = time.monotonic()
        agent = locks.holder(lock)
        if agent is None:
            follow_release(workdir)
            say(f"starting the agent of {workdir}")
            wait_started(start_agent(workdir, runtime), lock)
            agent = locks.holder(lock)
        if agent is not None:
            wait_ended(agent)
        how = collect()
        say(f"the agent has ended: {how}")
        # One that was killed, or left by itself, is replaced at once; one that fails at its start would make this spin.
        short = time.monotonic() - began < HEALTHY_S
        failed = how.startswith("exit code") and (agent is None or (how != "exit code 0" and short))
        failures = failures + 1 if failed else 0
        if failures:
            delay = min(DELAY_MAX_S, DELAY_S * 2**failures)
            say(f"the next one starts in {delay:.1f} s")
            time.sleep(delay)


def wait_ended(agent: Process) -> None:
    """Return when the agent has ended."""
    handle = open_pidfd(agent)
    if handle is not None:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll()
        os.close(handle)


def start_agent(workdir: str, runtime: str) -> int:
    """Start an agent in a session of its own; its pid."""
    log = os.path.join(runtime, "agent.log")
    turn(log)
    environment = {**os.environ, "PYTHONPATH": paths.code_root(workdir)}
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
    """Become the keeper of the current release when that is another than this one's."""
    root = paths.code_root(workdir)
    script = os.path.join(root, "pipeline", "agent", "keeper.py")
    if root != paths.own_root() and os.path.exists(script):
        os.execv(sys.executable, [sys.executable, "-I", "-S", script, "--workdir", workdir])  # noqa: S606


def collect() -> str:
    """Reap agents that were children of this process; how the last of them ended, in words."""
    how = "not a child of this keeper"
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return how
            code = os.waitstatus_to_exitcode(status)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
    except ChildProcessError:
        return how


def turn(path: str) -> None:
    """Move a log aside that has grown long."""
    try:
        if os.stat(path).st_size > LOG_LIMIT:
            os.replace(path, path + ".1")
    except FileNotFoundError:
        pass


def say(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(os.path.realpath(sys.argv[sys.argv.index("--workdir") + 1])))
