"""A program on a pseudo terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_ESCAPES = re.compile(rb"\x1b\[[0-9;:?<>=]*[ -/]*[@-~]|\x1b[()][0-9A-Za-z]|\x1b[=>78]")


@dataclass
class Terminal:
    """The program on the terminal, and our end of it."""

    pid: int
    end: int
    seen: bytes = b""

    def write(self, keys: bytes) -> None:
        os.write(self.end, keys)

    def take(self, timeout_s: float) -> bool:
        """Take in what the program writes; whether it wrote anything within ``timeout_s``."""
        if not select.select([self.end], [], [], timeout_s)[0]:
            return False
        self.seen += os.read(self.end, 65536)
        return True

    def drain(self, seconds: float) -> None:
        """Read for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.take(left)

    def text(self, since: int = 0) -> str:
        """What was written after the first ``since`` bytes, without escape sequences."""
        return _ESCAPES.sub(b"", self.seen[since:]).decode(errors="replace")

    def read_until(self, text: str, timeout_s: float = 30.0, *, since: int = 0) -> None:
        """Read until ``text`` was written after the first ``since`` bytes."""
        self.read_while(lambda: text not in self.text(since), text, timeout_s)

    def read_while(self, waits: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while waits():
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}: {self.text()[-4000:]}"
            self.take(0.1)

    def ended(self, within_s: float) -> int | None:
        """The exit code, negative for a signal; None where it still runs."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):  # what it writes on its way out must not fill the terminal
                self.take(0.01)
        return None


@contextlib.contextmanager
def on_terminal(argv: Sequence[str], *, columns: int = 120, lines: int = 40, nohup: bool = False) -> Iterator[Terminal]:
    """Run a program on a terminal of this size; it is ended at the end."""
    pid, end = pty.fork()
    if pid == 0:
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        size = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)}
        os.execvpe(argv[0], list(argv), {**os.environ, **size, "TEXTUAL_ANIMATIONS": "none"})
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    terminal, handle = Terminal(pid, end), os.pidfd_open(pid)
    try:
        yield terminal
    finally:
        with contextlib.suppress(OSError):  # it may have ended, and been waited for: its number may be another's by now
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            signal.pidfd_send_signal(handle, signal.SIGCONT)
            if terminal.ended(3.0) is None:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.waitpid(pid, 0)
        os.close(handle)
        with contextlib.suppress(OSError):
            os.close(end)
