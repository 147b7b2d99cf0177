"""The parent of one attempt of a job: starts it, outlives the agent, ends its tree, records its end.

Standard library only; ``shim.py`` runs it. Reads ``spec.json``: argv, env, secrets (names
whose values are taken from the shim's own environment), cwd, log, grace_s, oom_score_adj, number, job, cgroup (the
folder to make for the job's own memory cgroup) and oom_counter (of the cgroup it is in without one). Writes, each
durable before the next step: ``claim`` (O_EXCL: who creates it owns the attempt), ``started.json`` (before the job's
program is executed), ``exit.json`` (when no process of the job is left). What became of the start is said on stdout.

SIGTERM stops the job: TERM, grace, KILL. SIGUSR1 kills the tree at once.
"""

from __future__ import annotations

# All of it now: at the job's end the disk that the modules lie on may not answer.
import contextlib
import ctypes
import json
import os
import resource
import signal
import time
from collections.abc import Iterable

from pipeline.agent.attempts import job_cgroup
from pipeline.agent.attempts.attempt_files import STARTED, claim, keep_exit, oom_kills, read_grace, replace, reserve
from pipeline.agent.attempts.identity import Process, container_id, descendants, identify, send

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
RESCAN_S = 0.2
HANDLED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)
CLAIMED_BY_ANOTHER = 75
NOT_BEGUN = 74
COMMAND_LIMIT = 100  # characters
FAILURE_LIMIT = 1000  # bytes: the record must fit into the space kept for it


def main(folder: str) -> int:
    """Supervise the attempt in ``folder`` to its end."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_NAME, b"draftdeck-shim", 0, 0, 0)
    with open(os.path.join(folder, "spec.json"), "rb") as file:
        spec = json.load(file)
    me = identify(os.getpid())
    assert me is not None
    try:
        if not claim(folder, {"owner": "shim", "pid": me.pid, "start": me.start, "container": container_id()}):
            return CLAIMED_BY_ANOTHER
        reserve(folder)
        job, place, said = start(folder, spec)
    except OSError as error:  # a job whose end could not be recorded is not begun
        tell(f"cannot record the attempt in {folder}: {error.strerror or error}")
        return NOT_BEGUN
    tell(STARTED)
    attempt = Attempt(folder, job, float(spec["grace_s"]))
    attempt.follow()
    keep_exit(folder, {"error": failure(said), **place.outcome(), **attempt.outcome()})
    job_cgroup.remove(place.cgroup)
    return 0


def start(folder: str, spec: dict[str, object]) -> tuple[Process, Place, int]:
    """Start the job; its identity, its place, and a handle that tells why its program failed to start: ``failure``."""
    place = Place(str(spec.get("cgroup", "")), str(spec.get("oom_counter", "")))
    go_read, go_write = os.pipe()
    failure_read, failure_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        os.write(failure_write, json.dumps([place.enter(), adjust_oom(str(spec["oom_score_adj"]))]).encode() + b"\n")
        # Nothing of the job runs before its identity is on disk: if the shim dies first, this read ends empty.
        if os.read(go_read, 1) == b"":
            os._exit(1)
        execute(spec, failure_write)
    os.close(go_read)
    os.close(failure_write)
    job = identify(pid)
    assert job is not None  # not yet waited for, so /proc has it
    place.settle(json.loads(read_line(failure_read) or b'["", ""]'))
    started = {
        "pid": job.pid, "start": job.start, "at": time.time(), "monotonic": time.monotonic(), "cgroup": place.cgroup,
        "oom_counter": place.counter, "refused": place.refused,
    }  # fmt: skip
    replace(folder, "started.json", json.dumps(started).encode())
    os.write(go_write, b"g")
    os.close(go_write)
    return job, place, failure_read


def failure(handle: int) -> str:
    """Why the program of a job that has ended could not be executed; "" when it was."""
    said = b""
    while part := os.read(handle, 4096):
        said += part
    return said[:FAILURE_LIMIT].decode(errors="replace")


def read_line(handle: int) -> bytes:
    line = b""
    while (part := os.read(handle, 1)) not in (b"", b"\n"):
        line += part
    return line


def execute(spec: dict[str, object], failure: int) -> None:
    """In the child: become the job. Never returns; what went wrong is written to ``failure``."""
    step = "set up"
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        step = f"open the log {spec['log']}"
        log = os.open(str(spec["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        step = f"enter {spec['cwd']}"
        os.chdir(str(spec["cwd"]))
        argv = [str(part) for part in spec["argv"]]  # type: ignore[attr-defined]
        env = {str(key): str(value) for key, value in spec["env"].items()}  # type: ignore[attr-defined]
        env.update({name: os.environ[name] for name in spec.get("secrets", ()) if name in os.environ})  # type: ignore[attr-defined]
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        step = f"run {argv[0]}"
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except OSError as error:
        os.write(failure, f"cannot {step}: {error.strerror or error}".encode(errors="replace"))
    except BaseException as error:
        os.write(failure, f"cannot {step}: {error}".encode(errors="replace"))
    os._exit(127)


def adjust_oom(score: str) -> str:
    """In the child: take the job's place in the order in which the kernel kills for memory; why not, "" if it could."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(score)
    except OSError as error:  # lowering needs CAP_SYS_RESOURCE; the job runs all the same
        return f"oom_score_adj {score}: {error.strerror}"
    return ""


class Place:
    """Where the job is counted: in a memory cgroup of its own, or with everything else in the shim's."""

    def __init__(self, cgroup: str, counter: str) -> None:
        self.cgroup = cgroup
        self.counter = counter
        self.before: int | None = None
        self.refused: list[str] = []
        if cgroup:
            try:
                job_cgroup.make(cgroup)
            except OSError as error:
                self.settle([f"a memory cgroup for each job: {error.strerror}", ""])

    def enter(self) -> str:
        """In the child: enter the cgroup; why not, "" if it could or there is none."""
        try:
            if self.cgroup:
                job_cgroup.enter(self.cgroup)
        except OSError as error:
            return f"a memory cgroup for each job: {error.strerror}"
        return ""

    def settle(self, refused: list[str]) -> None:
        """Take in what the child was refused: first its cgroup, then its place in the OOM order."""
        self.refused += filter(None, refused)
        if refused[0]:
            job_cgroup.remove(self.cgroup)
            self.cgroup = ""
        self.counter = job_cgroup.counter(self.cgroup) or self.counter
        self.before = oom_kills(self.counter)

    def outcome(self) -> dict[str, object]:
        """The exit record's part on memory. The cgroup's peak holds page cache too."""
        return {
            "oom_before": self.before,
            "oom_after": oom_kills(self.counter),
            "cgroup_peak": job_cgroup.peak(self.cgroup),
        }


class Attempt:
    """The running tree of one job, followed until it is empty."""

    def __init__(self, folder: str, job: Process, grace_s: float) -> None:
        self.folder = folder
        self.job = job
        self.first_grace_s = grace_s
        self.status: int | None = None
        self.main_exited: tuple[float, float] | None = None
        self.asked = ""
        self.kill_at: float | None = None
        self.left_over: dict[int, str] = {}

    @property
    def grace_s(self) -> float:
        """Between TERM and KILL: as the job was started with, unless the plan has changed it since."""
        return read_grace(self.folder, self.first_grace_s)

    def follow(self) -> None:
        """Return when the job and everything it started have ended."""
        while self.reap():
            now = time.monotonic()
            if self.kill_at is not None and now >= self.kill_at:
                self.signal_tree(signal.SIGKILL)
            info = signal.sigtimedwait(HANDLED, self.patience(now))
            if info is None:
                continue
            if info.si_signo == signal.SIGTERM and not self.asked:
                self.asked = "stop"
                if self.kill_at is None:  # else the rest of the tree is being ended already
                    self.kill_at = time.monotonic() + self.grace_s
                # The main process first: it may end its own workers in order. The rest is told when it has gone.
                if self.status is None:
                    send(self.job, signal.SIGTERM)
            elif info.si_signo == signal.SIGUSR1:
                self.asked = "kill"
                self.kill_at = time.monotonic()

    def patience(self, now: float) -> float:
        """Seconds to wait for a signal: for ever while all is well, briefly while the tree is being ended."""
        if self.kill_at is None:
            return 3600.0
        return max(0.001, self.kill_at - now) if now < self.kill_at else RESCAN_S

    def reap(self) -> bool:
        """Collect what has ended; False when nothing of the tree is left."""
        ended = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            if pid == self.job.pid and self.status is None:
                ended, self.status = True, status
                self.main_exited = (time.time(), time.monotonic())
        # As a subreaper this process has become the parent of whatever the job left behind.
        # One that forks just then may be missed by a look, but what waitpid says is left is ended within the grace.
        if ended:
            self.signal_tree(signal.SIGTERM)
            if self.kill_at is None:
                self.kill_at = time.monotonic() + self.grace_s
        return True

    def signal_tree(self, number: int) -> int:
        """Signal every process below this one; how many there were."""
        found = descendants(os.getpid())
        for process in found:
            if process != self.job and self.status is not None:
                self.left_over.setdefault(process.pid, command_of(process.pid, os.environ.values()))
            send(process, number)
        return len(found)

    def outcome(self) -> dict[str, object]:
        """The exit record's part on how the tree ended. Times are [wall, monotonic] in seconds."""
        assert self.status is not None
        ended = os.WIFEXITED(self.status)
        return {
            "exit_code": os.WEXITSTATUS(self.status) if ended else None,
            "signal": None if ended else os.WTERMSIG(self.status),
            "main_exited": self.main_exited,
            "tree_empty": (time.time(), time.monotonic()),
            "asked": self.asked,
            "left_over": [f"{pid} {command}" for pid, command in list(self.left_over.items())[:10]],
            **resource_usage(),
        }


def resource_usage() -> dict[str, object]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"user_s": used.ru_utime, "system_s": used.ru_stime, "max_rss": used.ru_maxrss * 1024}


def command_of(pid: int, secrets: Iterable[str]) -> str:
    """A process's command line for the record, without the job's secrets.

    One that is on its way out has no command line any more, only its name: in brackets, as ps shows it.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()
        if not text:
            with open(f"/proc/{pid}/comm", "rb") as file:
                text = f"[{file.read(64).decode(errors='replace').strip()}]"
    except OSError:
        return ""
    for value in filter(None, secrets):
        text = text.replace(value, "***")
    text = text[:COMMAND_LIMIT]
    return "".join(character if character.isprintable() else "?" for character in text)


def tell(text: str) -> None:
    """Say on stdout what became of the start, and let go of it."""
    with contextlib.suppress(OSError):  # the agent may have gone; the next one finds the files
        os.write(1, text.encode(errors="replace"))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)
