"""A stand-in for NVML, which is not to be had without a GPU: what it answers is in a file beside it.

``install`` puts it where a reader imports ``pynvml`` from; the reader itself is the real process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.agent.rig import RELEASE, ROOT, Rig

MODULE = """
import json, time
from pathlib import Path

class NVMLError(Exception): pass
class NVMLError_Timeout(NVMLError): pass

NVML_TEMPERATURE_GPU = NVML_VOLATILE_ECC = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
nvmlEventTypeXidCriticalError = 8
told = 0

def state():
    return json.loads(Path(__file__).with_name("nvml.json").read_text())

class Thing:
    def __init__(self, **fields): self.__dict__.update(fields)

def nvmlInit():
    if state().get("refused"): raise NVMLError(state()["refused"])
    global told
    told = len(state().get("xids", ()))

def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(state()["used"])
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetIndex(device): return device
def nvmlDeviceGetName(device): return b"Test GPU"
def nvmlDeviceGetUUID(device): return f"GPU-{device}-abc"
def nvmlDeviceGetTemperature(device, kind): raise NVMLError("Not Supported")
def nvmlDeviceGetPowerUsage(device): return 588_000
def nvmlDeviceGetUtilizationRates(device): return Thing(gpu=93)
def nvmlDeviceGetTotalEccErrors(device, kind, counter): return state().get("ecc", 0)
def nvmlEventSetCreate(): return "set"
def nvmlDeviceRegisterEvents(device, kinds, events): pass

def nvmlDeviceGetMemoryInfo(device):
    while state().get("hangs"): time.sleep(0.02)
    used = state()["used"][device]
    if used is None: raise NVMLError("GPU is lost")
    return Thing(used=used, total=141_000_000_000)

def nvmlEventSetWait_v2(events, milliseconds):
    global told
    end = time.monotonic() + milliseconds / 1000
    while time.monotonic() < end:
        xids = state().get("xids", ())
        if len(xids) > told:
            told += 1
            return Thing(device=xids[told - 1][0], eventType=8, eventData=xids[told - 1][1])
        time.sleep(0.01)
    raise NVMLError_Timeout("Timeout")
"""


class Nvml:
    """The stand-in of one test. ``used``: bytes by GPU, None of one that is lost."""

    def __init__(self, folder: Path, *used: int | None) -> None:
        self._folder = folder
        self._state: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.say(used=used)
        (folder / "pynvml.py").write_text(MODULE)

    def say(self, **changes: Any) -> None:
        """Answer otherwise from now on."""
        self._state.update(changes)
        temporary = self._folder / ".nvml.json"
        temporary.write_text(json.dumps(self._state))
        temporary.replace(self._folder / "nvml.json")

    def xid(self, gpu: int, number: int) -> None:
        """Let the driver tell of a fault."""
        self.say(xids=[*self._state.get("xids", ()), (gpu, number)])


def gpu_rig(rig: Rig, *used: int | None) -> Nvml:
    """Give a rig's release a stand-in for NVML. Before its agent starts."""
    release = rig.workdir / "releases" / RELEASE
    release.unlink()
    release.mkdir()
    (release / "pipeline").symlink_to(ROOT / "pipeline")
    return Nvml(release, *used)
