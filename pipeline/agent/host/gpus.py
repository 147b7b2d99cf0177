"""The GPUs as the agent knows them, from a process that asks NVML: a driver that hangs never holds up the agent."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.agent.host.gpu_faults import GpuFault, in_words, meaning
from pipeline.agent.rules.gpu_wait import VISIBLE, Look, devices
from pipeline.protocol import STALE_S, GpuSample, JobSpec

INTERVAL_S: Final = 0.5
READER: Final = str(Path(__file__).with_name("gpu_reader.py"))
HUNG_S: Final = 60.0
"""A reader that was silent so long is killed. One that the driver holds cannot be: then there is no second."""
AGAIN_S: Final = 5.0
REMARKS: Final = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """What the reader found at one look, or was told. ``remark`` says what could not be seen, and why."""

    at: float  # monotonic
    gpus: tuple[GpuSample, ...] = ()
    remark: str = ""
    faults: tuple[GpuFault, ...] = ()
    last: bool = False  # no more will come: there is no NVML here


class GpuWatch:
    """Follows the reader's lines until ``stop``. Without NVML, or without GPUs, ``latest`` stays empty."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._samples: tuple[GpuSample, ...] = ()
        self._remark = ""
        self._at: float | None = None  # monotonic, of the samples
        self._heard = time.monotonic()
        self._faults: deque[GpuFault] = deque(maxlen=200)
        self._news: deque[GpuFault] = deque(maxlen=200)
        self._reader: subprocess.Popen[bytes] | None = None
        self._reading = True  # until a reader says that there is nothing to be read
        self._first = threading.Event()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def latest(self) -> tuple[GpuSample, ...]:
        """The newest figures; empty without GPUs and when the driver has not answered for ``STALE_S``."""
        return () if self._hangs() else self._samples

    def look(self) -> Look:
        """The same, with when they were taken."""
        return Look(self._at or 0.0, self.latest())

    def devices(self, spec: JobSpec) -> tuple[int, ...]:
        """The GPUs a job sees, by index."""
        return devices(spec, _inherited(), self.latest())

    def remarks(self) -> tuple[str, ...]:
        """What keeps GPUs from being seen, and faults of their hardware, in words."""
        broken = tuple(dict.fromkeys(in_words(fault) for fault in self.faults() if meaning(fault).hardware))
        silent = f"the GPU driver has not answered for {time.monotonic() - self._heard:.0f} s"
        remark = silent if self._hangs() else self._remark
        return (*((remark,) if remark else ()), *broken[-REMARKS:])

    def faults(self) -> tuple[GpuFault, ...]:
        """All faults told of since this began, oldest first."""
        return tuple(self._faults)

    def news(self) -> tuple[GpuFault, ...]:
        """Faults since the call before."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._news.popleft())
        return tuple(found)

    @property
    def looked(self) -> bool:
        """Whether the first look is done, whatever it found."""
        return self._first.is_set()

    def wait_first(self, timeout: float) -> bool:
        """Wait until the first look is done, whatever it found."""
        return self._first.wait(timeout)

    def stop(self) -> None:
        """End the reader; one that the driver holds is left behind, it keeps nothing of this process."""
        self._stopped.set()
        reader = self._reader
        if reader is not None:
            reader.kill()

    def _hangs(self) -> bool:
        return self._reading and time.monotonic() - self._heard > STALE_S

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._follow():
                    return
                if not self._stopped.is_set():
                    self._say(self._remark or "GPU figures are missing: their reader ended; see agent.log")
            except (OSError, ImportError) as error:
                self._say(f"no GPU figures: their reader cannot be started: {error}")
            except Exception as error:
                _log.exception("following the GPUs failed; trying again")
                self._say(f"GPU figures are missing: {error}")
            self._first.set()  # whoever waits for the first look waits no longer than this
            self._stopped.wait(AGAIN_S)

    def _follow(self) -> bool:
        """Start a reader and take in its lines; False when another would find nothing either."""
        import msgspec  # not at the top: a survey is made where it may be missing

        with subprocess.Popen(
            [sys.executable, "-P", READER, str(self._interval_s)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        ) as reader:  # fmt: skip
            self._reader, self._heard = reader, time.monotonic()
            if self._stopped.is_set():
                reader.kill()
            assert reader.stdout is not None
            pending = b""
            while part := self._next(reader, reader.stdout.fileno()):
                *lines, pending = (pending + part).split(b"\n")
                for line in lines:
                    self._take(msgspec.json.decode(line, type=Reading))
        return self._reading

    def _next(self, reader: subprocess.Popen[bytes], handle: int) -> bytes:
        """What the reader writes next; nothing when it has ended. Kills one that is silent."""
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        while not poller.poll(HUNG_S * 1000):
            reader.kill()
        return os.read(handle, 1 << 16)

    def _take(self, reading: Reading) -> None:
        self._heard, self._reading = time.monotonic(), not reading.last
        self._faults.extend(reading.faults)
        self._news.extend(reading.faults)
        if reading.gpus or reading.remark or not reading.faults:
            self._samples = reading.gpus
            self._at = reading.at if reading.gpus else None
            self._say(reading.remark)
        self._first.set()

    def _say(self, remark: str) -> None:
        if remark and remark != self._remark:
            _log.info("%s", remark)
        self._remark = remark


@functools.cache
def _inherited() -> str | None:
    """What a job's environment says of GPUs before its own variables."""
    from pipeline.agent.attempts.environment import first_process_environment  # needs msgspec, as above

    first = first_process_environment() or {}
    return first.get(VISIBLE, os.environ.get(VISIBLE))
