"""How a job says what it has done: JSON lines in the file that DRAFTDECK_PROGRESS names, and plain lines on stderr.

A stage makes one ``Reporter``, calls ``update`` as often as it likes (a line is written at most every half second) and
``finish`` once. The JSON lines are ``pipeline.protocol.ProgressLine``. Where they go to a file, standard error is the
job's log: it gets a line for each phase, one a minute in a long one, and the result.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from pipeline.protocol import DatasetCount, Eta, Progress, ProgressLine, Result

PROGRESS_VARIABLE: Final = "DRAFTDECK_PROGRESS"
INTERVAL_S: Final = 0.5
LOG_INTERVAL_S: Final = 60.0


class Reporter:
    """Appends to the job's progress file. A full disk never ends the job: a line that cannot be written is lost."""

    def __init__(self, path: Path | None = None, *, interval_s: float = INTERVAL_S) -> None:
        named = os.environ.get(PROGRESS_VARIABLE)
        self._path = path or (Path(named) if named else None)
        self._interval_s = interval_s
        self._next = 0.0
        self._logged_phase = ""
        self._log_next = 0.0

    @property
    def due(self) -> bool:
        """Whether ``update`` would write a line now: what it takes to make one may be saved otherwise."""
        return time.monotonic() >= self._next

    def update(
        self,
        phase: str,
        *,
        done: float = 0.0,
        total: float | None = None,
        unit: str = "records",
        datasets: Mapping[str, DatasetCount] | None = None,
        figures: Mapping[str, float] | None = None,
        note: str = "",
        eta: Eta | None = None,
        force: bool = False,
    ) -> None:
        """Report where the job is; dropped unless ``force`` when the last line is younger than the interval."""
        now = time.monotonic()
        if now < self._next and not force:
            return
        self._next = now + self._interval_s
        progress = Progress(
            at=time.time(),
            phase=phase,
            done=done,
            total=total,
            unit=unit,
            datasets=dict(datasets or {}),
            figures=dict(figures or {}),
            note=note,
            eta=eta,
            monotonic=now,
        )
        if self._path is None or phase != self._logged_phase or now >= self._log_next:
            self._logged_phase, self._log_next = phase, now + LOG_INTERVAL_S
            share = f" of {total:,.0f}" if total is not None else ""
            counted = f": {done:,.0f}{share} {unit}" if done or total is not None else ""
            self._log(f"{phase}{counted}{f' · {note}' if note else ''}")
        if self._path is not None:
            self._append(ProgressLine(progress=progress))

    def finish(
        self,
        records: int,
        message: str,
        *,
        manifest: str = "",
        datasets: Mapping[str, DatasetCount] | None = None,
    ) -> None:
        """Report the result: the number of records made and one line on them. Zero records make the job ``empty``."""
        self._log(message)
        if self._path is None:
            return
        self._append(
            ProgressLine(
                result=Result(
                    at=time.time(), records=records, message=message, manifest=manifest, datasets=dict(datasets or {})
                )
            )
        )

    def _log(self, text: str) -> None:
        stamp = "" if self._path is None else f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] "
        # As for the file: a log that cannot be written is no reason to end.
        with contextlib.suppress(OSError, ValueError):
            print(f"{stamp}{text}", file=sys.stderr, flush=True)

    def _append(self, line: ProgressLine) -> None:
        assert self._path is not None
        # A line torn by a kill ends without a newline; starting with one keeps it from swallowing this line.
        try:
            with self._path.open("ab") as file:
                file.write(b"\n" + msgspec.json.encode(line) + b"\n")
        except OSError as error:
            print(f"progress not written to {self._path}: {error}", file=sys.stderr, flush=True)


def parse_line(line: bytes) -> ProgressLine | None:
    """Read one line of a progress file; None for a blank, torn or foreign one."""
    if not line.strip():
        return None
    try:
        return msgspec.json.decode(line, type=ProgressLine)
    except msgspec.MsgspecError:
        return None
