"""A curve in characters: braille dots over several rows, or one row of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
# Bits of the dots of a braille cell from the bottom up, for its left and its right column.
_DOTS: Final = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))


def resample(at: Sequence[float], values: Sequence[float], columns: int) -> list[float | None]:
    """The mean of the values that fall into each of ``columns`` equal spans of time; None where there are none.

    A point is a measurement up to the next one, so a span between two close points carries the earlier value on.
    """
    points = [(t, v) for t, v in zip(at, values, strict=False) if math.isfinite(t) and math.isfinite(v)]
    if not points or columns <= 0:
        return [None] * max(0, columns)
    first, last = min(t for t, _ in points), max(t for t, _ in points)
    span = last - first
    sums, counts = [0.0] * columns, [0] * columns
    for t, value in points:
        column = columns - 1 if span <= 0 or math.isinf(span) else min(columns - 1, int((t - first) / span * columns))
        sums[column] += value
        counts[column] += 1
    spread = [total / number if number else None for total, number in zip(sums, counts, strict=True)]
    widest = max(2, 3 * columns // max(1, len(points)) + 1)
    gap, carried = 0, None
    for column, mean in enumerate(spread):
        if mean is not None:
            gap, carried = 0, mean
        elif carried is not None and gap < widest:
            gap += 1
            spread[column] = carried
    return spread


def braille(values: Sequence[float | None], width: int, height: int, top: float | None = None) -> list[str]:
    """An area plot of ``2 * width`` values in ``height`` rows, top row first. ``top`` None: the highest value."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    ceiling = top if top is not None else max(known, default=0.0)
    levels = height * 4
    heights = [
        0
        if value is None or not math.isfinite(value)
        else max(1 if value > 0 else 0, round(_share(value, ceiling) * levels))
        for value in values[: 2 * width]
    ]
    heights += [0] * (2 * width - len(heights))
    rows = []
    for row in range(height - 1, -1, -1):
        cells = []
        for cell in range(width):
            bits = 0
            for side in (0, 1):
                lit = min(4, max(0, heights[2 * cell + side] - row * 4))
                for dot in range(lit):
                    bits |= _DOTS[side][dot]
            cells.append(chr(0x2800 + bits) if bits else " ")
        rows.append("".join(cells))
    return rows


def blocks(values: Sequence[float | None], top: float | None = None) -> str:
    """One row of eight-level blocks, a character a value; a space where there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    ceiling = top if top is not None else max(known, default=0.0)
    return "".join(
        " " if value is None or not math.isfinite(value) else _BLOCKS[max(0, math.ceil(_share(value, ceiling) * 8) - 1)]
        for value in values
    )


def _share(value: float, ceiling: float) -> float:
    """How far up to ``ceiling`` a value reaches, 0 to 1."""
    if not math.isfinite(value) or not math.isfinite(ceiling) or ceiling <= 0:
        return 0.0
    return min(max(value, 0.0), ceiling) / ceiling
