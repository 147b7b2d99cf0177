"""The GPUs, read through NVML in a thread of its own: a driver that hangs never holds up the agent."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Final

from pipeline.protocol import STALE_S, GpuSample

INTERVAL_S: Final = 1.0
_log = logging.getLogger(__name__)


class GpuWatch:
    """Samples every GPU once a second until ``stop``. Without NVML, or without GPUs, ``latest`` stays empty."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._samples: tuple[GpuSample, ...] = ()
        self._remark = ""
        self._at: float | None = None
        self._first = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def latest(self) -> tuple[GpuSample, ...]:
        """The newest figures; empty without GPUs and when the driver has not answered for ``STALE_S``."""
        return () if self._hangs() else self._samples

    def remarks(self) -> tuple[str, ...]:
        """What keeps GPUs from being seen, in words."""
        if self._hangs() and self._at is not None:
            return (f"the GPU driver has not answered for {time.monotonic() - self._at:.0f} s",)
        return (self._remark,) if self._remark else ()

    def wait_first(self, timeout: float) -> bool:
        """Wait until the first look is done, whatever it found."""
        return self._first.wait(timeout)

    def stop(self) -> None:
        """End the thread; one that hangs in the driver is left behind, it does not keep the process."""
        self._stopped.set()
        self._thread.join(timeout=0.5)

    def _hangs(self) -> bool:
        return self._at is not None and time.monotonic() - self._at > STALE_S

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._give_up("no GPU figures: nvidia-ml-py is not installed here")
            return
        while not self._stopped.is_set():
            try:
                pynvml.nvmlInit()
            except Exception as error:
                self._give_up(f"no GPU figures: {_words(error)}")
                return
            with contextlib.suppress(Exception):
                self._sample_until_it_fails(pynvml)
            with contextlib.suppress(Exception):
                pynvml.nvmlShutdown()
            self._stopped.wait(self._interval_s)

    def _sample_until_it_fails(self, nvml: Any) -> None:
        while not self._stopped.is_set():
            try:
                samples = tuple(read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
            except Exception as error:
                self._say(f"GPU figures are missing: {_words(error)}")
                self._samples = ()
                raise
            self._samples, self._remark, self._at = samples, "", time.monotonic()
            self._first.set()
            self._stopped.wait(self._interval_s)

    def _give_up(self, remark: str) -> None:
        self._say(remark)
        self._first.set()

    def _say(self, remark: str) -> None:
        if remark != self._remark:
            _log.info("%s", remark)
        self._remark = remark


def read_gpu(nvml: Any, index: int) -> GpuSample:
    """One GPU; a figure this model does not give is None, or 0 for the utilisation."""
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    name = nvml.nvmlDeviceGetName(device)
    utilisation = temperature = power = None
    with contextlib.suppress(nvml.NVMLError):
        utilisation = float(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
    with contextlib.suppress(nvml.NVMLError):
        temperature = float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
    with contextlib.suppress(nvml.NVMLError):
        power = nvml.nvmlDeviceGetPowerUsage(device) / 1000
    return GpuSample(
        index=index,
        name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        memory_used=int(memory.used),
        memory_total=int(memory.total),
        utilisation=utilisation or 0.0,
        temperature=temperature,
        power=power,
    )


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
