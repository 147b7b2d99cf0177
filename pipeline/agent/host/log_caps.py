"""Keeps logs within their caps: of one that takes more, the front is given back to the disk while its job writes on.

Offsets stay as they are and the job notices nothing. Everything here may block: it runs in the thread of the senses.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pipeline.agent import paths
from pipeline.agent.host.holes import BLOCK, UNSUPPORTED, allocated, give_back

LOOK_MAX_S: Final = 1.0
LOOK_MIN_S: Final = 0.05
KEPT_SHARE: Final = 0.75
"""Of the cap, what is left when a log was cut; the rest is what it may grow by until the next cut."""

_log = logging.getLogger(__name__)


class LogCaps:
    """The logs of one work directory. ``remarks`` say why a cap cannot hold here, if it cannot."""

    def __init__(self) -> None:
        self.remarks: tuple[str, ...] = ()
        self._seen: dict[Path, tuple[float, int]] = {}  # monotonic time, size
        self._unsupported = False

    def trim(self, logs: Iterable[Path], cap: int) -> float:
        """Cut each log that takes more than ``cap`` bytes; seconds until the next look, fewer where one grows fast."""
        now, before, due = time.monotonic(), self._seen, LOOK_MAX_S
        self._seen = {}
        if self._unsupported:
            return due
        for log in logs:
            try:
                found = os.lstat(log)  # half the time of Path's; where a job made a link of it, the link
            except OSError:
                continue
            self._seen[log] = now, found.st_size
            taken = found.st_blocks * 512
            if taken > cap and self._cut(log, found.st_size - int(KEPT_SHARE * cap)):
                taken = int(KEPT_SHARE * cap)
            at, size = before.get(log, (now, found.st_size))
            if now > at and found.st_size > size and taken < cap:
                due = min(due, (cap - taken) * (now - at) / (found.st_size - size))
        return max(LOOK_MIN_S, due)

    def trim_old(self, folder: Path, newest: int, cap: int, count: int) -> None:
        """Keep what a job's attempts before ``newest`` left within bounds: their logs together ``cap`` bytes, the older
        ones cut first; of all but the last ``count`` attempts the whole folder goes.
        """
        earlier = sorted((number for number in paths.attempt_numbers(folder) if number < newest), reverse=True)
        for number in earlier[count:]:
            shutil.rmtree(folder / str(number), ignore_errors=True)
        left = cap
        for number in earlier[:count]:
            log = folder / str(number) / "log"
            if allocated(log) > left:
                size = log.lstat().st_size
                # Nobody writes to it any more: where it cannot be cut, it can go.
                if not self._cut(log, size - left if left > BLOCK else size + BLOCK) and self._unsupported:
                    log.unlink(missing_ok=True)
            left = max(0, left - allocated(log))

    def next_numbers(self, jobs: Path) -> dict[str, int]:
        """By folder of a job: a number above those of all attempts in it."""
        if not jobs.is_dir():
            return {}
        return {
            job.name: max(paths.attempt_numbers(job), default=0) + 1
            for job in jobs.iterdir()
            if job.is_dir() and not job.is_symlink()
        }

    def _cut(self, log: Path, upto: int) -> bool:
        if self._unsupported:
            return False
        try:
            give_back(log, (upto + BLOCK - 1) // BLOCK * BLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._unsupported = error.errno in UNSUPPORTED
            remark = f"a log that grows too large is not cut here: {error.strerror}"
            if not self.remarks:
                _log.warning("%s (%s)", remark, log)
            self.remarks = (remark,)
            return False
        self.remarks = ()
        return True
