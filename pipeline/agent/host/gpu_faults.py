"""Faults that a GPU's driver tells of, in words: Xid numbers and memory errors that could not be corrected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

HARDWARE_S: Final = 600.0
"""So long before a death a fault of the hardware may be its cause: collectives hang until a watchdog ends them."""
PROGRAM_S: Final = 30.0
LATE_S: Final = 5.0
"""The driver may tell of a fault after the job has died of it."""


@dataclass(frozen=True)
class GpuFault:
    """One fault. ``gpu`` None: the driver could not say which. ``ecc``: uncorrectable memory errors, newly counted."""

    gpu: int | None
    at: float  # wall time
    monotonic: float
    xid: int | None = None
    ecc: int = 0


@dataclass(frozen=True)
class Xid:
    """What a number means and what to do.

    ``blame``: for a death on that GPU it is named before all that the log says ("first"), where nothing else explains
    it ("last"), or never. ``hardware``: stays on the screen as long as the agent lives.
    """

    name: str
    advice: str
    blame: Literal["first", "last", "never"] = "first"
    hardware: bool = True


_PROGRAM: Final = "most often a bug of the program: run it again with CUDA_LAUNCH_BLOCKING=1 to see where"
_RESET: Final = "end what runs on this GPU and reset it (nvidia-smi -r on the host); have it replaced if it comes again"
_REBOOT: Final = "nothing can run on this GPU until the host is restarted; have its power, cooling and slot checked"

XIDS: Final[dict[int, Xid]] = {
    13: Xid("graphics engine exception", _PROGRAM, "last", hardware=False),
    31: Xid("memory page fault", f"an illegal address; {_PROGRAM}", "last", hardware=False),
    43: Xid("stopped processing", f"it ended the work of one program; {_PROGRAM}", "last", hardware=False),
    45: Xid("cleaned up after a program", "follows another fault, or a kill: look for that", "never", hardware=False),
    48: Xid("double-bit memory error", _RESET),
    63: Xid("memory row remapped", "takes effect when this GPU is reset: do so when nothing runs on it", "never"),
    64: Xid("memory row not remapped", _RESET),
    74: Xid("NVLink error", "see nvidia-smi nvlink -e on the host; reset the GPUs, and check link and bridge"),
    79: Xid("fell off the bus", _REBOOT),
    94: Xid("contained memory error", "only the job that used it is hurt: restart it; reset the GPU when it is free"),
    95: Xid("uncontained memory error", _RESET),
    119: Xid("its firmware does not answer", f"{_RESET}; if that fails, restart the host"),
}
_ECC: Final = Xid("memory errors that could not be corrected", _RESET)
_OTHER: Final = Xid("see NVIDIA's list", "look it up in NVIDIA's list of Xid errors", "last", hardware=False)


def meaning(fault: GpuFault) -> Xid:
    """What it means, and what to do."""
    return _ECC if fault.xid is None else XIDS.get(fault.xid, _OTHER)


def in_words(fault: GpuFault) -> str:
    """Like "GPU 3: Xid 79 (fell off the bus)"."""
    where = "a GPU" if fault.gpu is None else f"GPU {fault.gpu}"
    if fault.xid is None:
        return f"{where}: {fault.ecc:,} {_ECC.name}"
    return f"{where}: Xid {fault.xid} ({meaning(fault).name})"


def near(faults: Iterable[GpuFault], devices: Iterable[int], began: float, died: float) -> tuple[GpuFault, ...]:
    """Those on a job's devices that may have to do with its death, newest last. Times are monotonic."""
    mine = set(devices)
    return tuple(
        fault
        for fault in faults
        if (fault.gpu is None or fault.gpu in mine)
        and max(began, died - (HARDWARE_S if meaning(fault).hardware else PROGRAM_S)) <= fault.monotonic
        and fault.monotonic <= died + LATE_S
    )
