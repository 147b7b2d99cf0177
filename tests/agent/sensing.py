"""What the tests of the agent's senses share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], timeout: float = 10.0) -> T:
    """What ``look`` returns once it is true; fails with its last answer after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := look()):
        assert time.monotonic() < deadline, f"still {answer!r} after {timeout} s"
        time.sleep(0.01)
    return answer


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process that runs ``code`` and has written one line to say it is ready; killed at the end."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", f"it did not get ready: exit code {process.wait()}"
        yield process
    finally:
        process.kill()
        process.communicate()
