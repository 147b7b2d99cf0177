"""Sizes and durations as an operator writes them: "92 GB", "61 GiB", "10 m", "1 h 30 m", or plain numbers."""

from __future__ import annotations

import re
from typing import Final

SIZE_WORDS: Final = 'a size such as "92 GB" or "61 GiB", or a whole number of bytes'
DURATION_WORDS: Final = 'a duration such as "30 s", "10 m" or "1 h 30 m", or a number of seconds'

LARGEST_SIZE: Final = 2**60
LONGEST: Final = 10 * 365 * 86400.0

_UNITS: Final = {
    unit: base**power
    for power, letter in enumerate("KMGTP", start=1)
    for unit, base in ((f"{letter}B", 1000), (f"{letter}IB", 1024))
} | {"B": 1}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,9})?)"
_SIZE: Final = re.compile(_NUMBER + r"\s*([KMGTP]?I?B)", re.IGNORECASE | re.ASCII)
_PART: Final = re.compile(_NUMBER + r"\s*(ms|min|s|m|h|d)\s*", re.ASCII)


def parse_size(value: str | int) -> int | None:
    """Bytes; None for what is not a size, is negative or beyond an exabyte."""
    if isinstance(value, int):
        size = value
    else:
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            return None
        size = round(float(match[1]) * _UNITS[match[2].upper()])
    return size if 0 <= size <= LARGEST_SIZE else None


def parse_duration(value: str | float) -> float | None:
    """Seconds; None for what is not a duration, is negative or beyond ten years."""
    if isinstance(value, int | float):
        return float(value) if 0 <= value <= LONGEST else None
    text = value.strip()
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        return None
    seconds = sum(float(part[1]) * _SECONDS[part[2]] for part in parts)
    return seconds if seconds <= LONGEST else None


def show_size(size: int) -> str:
    """``92 GB``, ``5.1 TB``: decimal units, at most three digits that mean something."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if value >= 99.5 or value == round(value) else f"{value:.1f} {unit}"
