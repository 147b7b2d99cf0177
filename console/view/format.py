"""Figures in an operator's units. Every function takes None and NaN too, and never raises."""

from __future__ import annotations

import math
import time
from typing import Final

from pipeline.protocol import Eta

NOTHING: Final = "–"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0


def known(value: float | None) -> bool:
    """True for a number that can be drawn."""
    return value is not None and math.isfinite(value)


def _scaled(value: float) -> tuple[float, int]:
    power = 0
    while abs(value) >= 999.5 and power < len(_UNITS) - 1:
        value /= 1000
        power += 1
    return value, power


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"


def size(value: float | None) -> str:
    """Bytes with a decimal unit: "690 GB", "2.3 GB", "0 B"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    scaled, power = _scaled(value)
    return f"{scaled:.0f} B" if power == 0 else f"{_digits(scaled)} {_UNITS[power]}"


def size_of(used: float | None, limit: float | None) -> str:
    """Two sizes in the unit of the second: "812 / 960 GB"."""
    if used is None or limit is None or not math.isfinite(used) or not math.isfinite(limit):
        return f"{size(used)} / {size(limit)}"
    scaled, power = _scaled(limit)
    return f"{_digits(used / 1000**power)} / {_digits(scaled)} {_UNITS[power]}"


def count(value: float | None) -> str:
    """A whole number with thousands marked: "2,800"."""
    return f"{value:,.0f}" if value is not None and math.isfinite(value) else NOTHING


def short_count(value: float | None) -> str:
    """A number in at most six characters: "2,800", "88.1k", "5.0M"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) < 9999.5:
        return f"{value:,.0f}"
    for unit in ("k", "M", "G", "T"):
        value /= 1000
        if abs(value) < 999.5:
            return f"{value:.1f}{unit}" if abs(value) < 99.95 else f"{value:.0f}{unit}"
    return f"{value:.1e}"


def number(value: float | None) -> str:
    """A measured figure with what precision it deserves: "828", "1.05", "0.40"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def percent(share: float | None) -> str:
    """A share of one as per cent. 99.9 % of the way is not "100 %"."""
    if share is None or not math.isfinite(share):
        return NOTHING
    whole = math.floor(min(max(share, -1e9), 1e9) * 100 + 1e-9)
    return f"{whole} %" if whole > 0 or share <= 0 else "<1 %"


def duration(seconds: float | None) -> str:
    """Two units: "4 m 05 s", "31 h 12 m", "5 d 3 h"; one below a minute: "12 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < MINUTE:
        return f"{int(seconds)} s"
    if seconds < HOUR:
        return f"{int(seconds // MINUTE)} m {int(seconds % MINUTE):02d} s"
    if seconds < 100 * HOUR:
        return f"{int(seconds // HOUR)} h {int(seconds % HOUR // MINUTE):02d} m"
    return f"{int(seconds // DAY)} d {int(seconds % DAY // HOUR)} h"


def short_duration(seconds: float | None) -> str:
    """One unit, at most five characters up to 99 days: "12 s", "41 m", "28 h", "5 d"."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{int(seconds)} s"
    if seconds < 100 * MINUTE:
        return f"{int(seconds // MINUTE)} m"
    if seconds < 100 * HOUR:
        return f"{int(seconds // HOUR)} h"
    return f"{int(seconds // DAY)} d"


def age(seconds: float | None) -> str:
    """How old data is: "0.8 s", "12 s", "4 m 05 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    return f"{max(0.0, seconds):.1f} s" if seconds < 9.95 else duration(seconds)


def clock(at: float, form: str = "%H:%M:%S") -> str:
    """A wall time of the container as this machine's clocks would show it."""
    try:
        return time.strftime(form, time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return NOTHING


def _eta_unit(seconds: float) -> tuple[float, str]:
    if seconds >= 100 * HOUR:
        return DAY, "d"
    if seconds >= 100 * MINUTE:
        return HOUR, "h"
    if seconds >= 100:
        return MINUTE, "m"
    return 1.0, "s"


def _in_unit(seconds: float, unit: float) -> str:
    value = max(0.0, seconds) / unit
    return f"{value:.1f}" if unit >= HOUR and value < 9.95 else f"{value:.0f}"


def eta(value: Eta | None) -> str:
    """Time left with its interval in one unit: "29 h (24–36)"."""
    if value is None or not all(map(math.isfinite, (value.seconds, value.low, value.high))):
        return NOTHING
    unit, name = _eta_unit(value.seconds)
    middle, low, high = (_in_unit(each, unit) for each in (value.seconds, value.low, value.high))
    return f"{middle} {name}" if low == high else f"{middle} {name} ({low}–{high})"


def short_eta(value: Eta | None) -> str:
    """Time left without its interval, for a narrow column: "29 h"."""
    if value is None or not math.isfinite(value.seconds):
        return NOTHING
    unit, name = _eta_unit(value.seconds)
    return f"{_in_unit(value.seconds, unit)} {name}"


def bar(share: float | None, width: int) -> str:
    """A bar of ``width`` cells, in eighths of a cell; empty where the share is not known."""
    if width <= 0:
        return ""
    if share is None or not math.isfinite(share):
        return "░" * width
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + ("" if rest == 0 else "▏▎▍▌▋▊▉"[rest - 1])
    return filled + "░" * (width - len(filled))
