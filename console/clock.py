"""The clock that ages are told by: no setting of the wall clock moves it, and it goes on while the laptop sleeps."""

from __future__ import annotations

import time
from typing import Final

# Python's monotonic clock stands still in a suspended machine: data from before would look fresh after it.
# Where there is no CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC is the one that goes on.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since some moment."""
    return time.clock_gettime(_CLOCK)
