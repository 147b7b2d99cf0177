"""Reads the GPUs through NVML, in a process of its own: ``python -P gpu_reader.py [INTERVAL_S]``.

A driver that hangs leaves whoever called it in a sleep that no signal ends. In a thread of the agent that would keep
the dead agent's locks and sockets; here it keeps nothing. Writes a line of JSON (``Reading``) on stdout at every look
and at every fault, and ends when nobody reads them any more, or when there is no NVML here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))

import msgspec

from pipeline.agent.host.gpu_faults import GpuFault
from pipeline.agent.host.gpus import INTERVAL_S, Reading
from pipeline.protocol import GpuSample

ECC_S: Final = 10.0


def main(interval_s: float) -> int:
    """Write readings until nobody reads them."""
    with contextlib.suppress(BrokenPipeError):
        for reading in _readings_for_ever(interval_s):
            os.write(1, msgspec.json.encode(reading) + b"\n")
    return 0


def _readings_for_ever(interval_s: float) -> Iterator[Reading]:
    try:
        import pynvml
    except ImportError:
        yield Reading(time.monotonic(), remark="no GPU figures: nvidia-ml-py is not installed here", last=True)
        return
    while True:
        try:
            pynvml.nvmlInit()
        except Exception as error:
            yield Reading(time.monotonic(), remark=f"no GPU figures: {_words(error)}", last=True)
            return
        try:
            yield from readings(pynvml, interval_s)
        except Exception as error:
            yield Reading(time.monotonic(), remark=f"GPU figures are missing: {_words(error)}")
        with contextlib.suppress(Exception):
            pynvml.nvmlShutdown()
        time.sleep(interval_s)


def readings(nvml: Any, interval_s: float) -> Iterator[Reading]:
    """Look at every GPU for ever, once an interval; between the looks wait for faults."""
    devices = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            devices[index] = nvml.nvmlDeviceGetHandleByIndex(index)
    lost = [f"GPU {index} is lost" for index in range(nvml.nvmlDeviceGetCount()) if index not in devices]
    waiting = _listen(nvml, devices.values())
    errors: dict[int, int] = {}
    next_ecc = 0.0
    while True:
        now = time.monotonic()
        samples, troubles, faults = [], list(lost), []
        for index, device in devices.items():
            try:
                samples.append(read_gpu(nvml, device, index))
            except nvml.NVMLError as error:
                troubles.append(f"GPU {index} does not answer: {_words(error)}")
        if troubles and not samples:
            raise RuntimeError(troubles[0])
        if now >= next_ecc:
            next_ecc = now + ECC_S
            for index, device in devices.items():
                faults += _ecc_faults(nvml, device, index, errors)
        yield Reading(now, tuple(samples), "; ".join(troubles), tuple(faults))
        yield from _wait(nvml, waiting, now + interval_s)


def read_gpu(nvml: Any, device: Any, index: int) -> GpuSample:
    """One GPU; a figure its model does not give is None, or 0 for the utilisation. NVMLError without its memory."""
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    name = nvml.nvmlDeviceGetName(device)
    utilisation = temperature = power = None
    uuid = ""
    with contextlib.suppress(nvml.NVMLError):
        utilisation = float(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
    with contextlib.suppress(nvml.NVMLError):
        temperature = float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
    with contextlib.suppress(nvml.NVMLError):
        power = nvml.nvmlDeviceGetPowerUsage(device) / 1000
    with contextlib.suppress(nvml.NVMLError):
        uuid = _text(nvml.nvmlDeviceGetUUID(device))
    return GpuSample(
        index=index,
        name=_text(name),
        memory_used=int(memory.used),
        memory_total=int(memory.total),
        utilisation=utilisation or 0.0,
        temperature=temperature,
        power=power,
        uuid=uuid,
    )


def _ecc_faults(nvml: Any, device: Any, index: int, known: dict[int, int]) -> list[GpuFault]:
    """Memory errors that could not be corrected since the look before; none where they are not counted."""
    try:
        count = int(
            nvml.nvmlDeviceGetTotalEccErrors(
                device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        )  # fmt: skip
    except nvml.NVMLError:
        return []
    more = count - known.get(index, count)
    known[index] = count
    return [GpuFault(index, time.time(), time.monotonic(), ecc=more)] if more > 0 else []


def _listen(nvml: Any, devices: Iterable[Any]) -> Any | None:
    """An event set in which the driver tells of faults; None where it does not."""
    found = None
    for device in devices:
        try:
            found = found or nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, found)
        except nvml.NVMLError:
            continue  # a model that tells of none
    return found


def _wait(nvml: Any, waiting: Any | None, until: float) -> Iterator[Reading]:
    """Faults that the driver tells of until a monotonic time."""
    while (left := until - time.monotonic()) > 0:
        if waiting is None:
            time.sleep(left)
            continue
        try:
            event = nvml.nvmlEventSetWait_v2(waiting, max(1, int(left * 1000)))
        except nvml.NVMLError_Timeout:
            return
        index = None
        with contextlib.suppress(nvml.NVMLError):  # one that fell off the bus cannot be asked for its number
            index = int(nvml.nvmlDeviceGetIndex(event.device))
        now = time.monotonic()
        yield Reading(now, faults=(GpuFault(index, time.time(), now, xid=int(event.eventData)),))


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else INTERVAL_S))
