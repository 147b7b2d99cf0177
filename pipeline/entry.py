"""What the command lines of the stages share: checks of numbers, and an orderly end of the process."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn


def positive(text: str) -> int:
    """For argparse: a whole number of 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def share(text: str) -> float:
    """For argparse: a number from 0 to 1."""
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def part(text: str) -> float:
    """For argparse: a share that leaves something over."""
    value = float(text)
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share: 0 or more, less than 1")
    return value


def run_and_exit(main: Callable[[], int]) -> NoReturn:
    """Run a stage as this process's program. SIGTERM unwinds it, so that nothing half-written is left behind.

    Threads of the tokenizer and download libraries can abort an interpreter while it ends, after all work is done and
    synced; so it is left without that.
    """
    signal.signal(signal.SIGTERM, _end)
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
