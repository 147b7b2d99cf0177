"""Which shape a dataset has, told from its first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.prep.roles import printable
from pipeline.prep.shapes import DIALOGUE_COLUMNS, PROMPT_COLUMNS, READERS, TURN_KEYS

FIRST_ROWS: Final = 64
"""How many rows detection looks at."""

LOOKS: Final = 8  # columns that a line names

ENOUGH: Final = 0.5
"""The share of them that must read as a shape for it to be taken."""


@dataclass(frozen=True)
class Detected:
    """A shape, the share of the first rows that read as it, how many rows that were, and the columns they have."""

    shape: str
    sure: float
    rows: int
    columns: str = ""


class UnknownShapeError(Exception):
    """The first rows read as no shape; one line that says what they look like and what is nearest."""


def detect(rows: Sequence[Any]) -> Detected:
    """The shape that most of the first rows have; of equals, the most particular one. Raises UnknownShapeError."""
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        raise UnknownShapeError("shape not recognised: none of the first rows is an object with columns")
    scores = {shape: share(shape, objects) for shape in READERS}
    best = max(scores, key=lambda shape: scores[shape])  # the first of equals, in READERS' order
    if scores[best] < ENOUGH:
        nearest = f"nearest: {best}, {scores[best]:.0%} of them; " if scores[best] else ""
        raise UnknownShapeError(
            f"shape not recognised; columns seen: {looks(objects)}; {nearest}expected {wanted('messages')}, or "
            f"{wanted('pair')}; name it with --shape"
        )
    return Detected(best, scores[best], len(objects), looks(objects, types=False))


def named(shape: str, rows: Sequence[Any]) -> Detected:
    """A shape that is given, and how well the first rows fit it."""
    objects = [row for row in rows if isinstance(row, Mapping)]
    return Detected(shape, share(shape, rows), len(rows), looks(objects, types=False))


def wanted(shape: str) -> str:
    """What a row of a shape has, in words."""
    if shape == "pair":
        return f"a column {', '.join(PROMPT_COLUMNS)}"
    if shape == "dialogue":
        return f"labelled text in a column {', '.join(DIALOGUE_COLUMNS)}"
    who, what = TURN_KEYS[shape]
    return f'a list of turns with "{who}" and "{what}"'


def share(shape: str, rows: Sequence[Any]) -> float:
    """The share of the rows that read as a shape."""
    return sum(isinstance(row, Mapping) and _reads(shape, row) for row in rows) / max(1, len(rows))


def looks(rows: Sequence[Mapping[str, Any]], *, types: bool = True) -> str:
    """The columns of the rows, and the types of their values, in words: ``chat: text, id: number or null``."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for column, value in row.items():
            kinds = found.setdefault(printable(column), [])
            kind = _type(value)
            if kind not in kinds:
                kinds.append(kind)
    parts = [f"{column}: {' or '.join(sorted(kinds))}" if types else column for column, kinds in found.items()]
    return ", ".join(parts[:LOOKS]) + (", …" if len(parts) > LOOKS else "")


def _reads(shape: str, row: Mapping[str, Any]) -> bool:
    try:
        return bool(READERS[shape](row))
    except Exception:  # whatever a row holds, it is not of this shape
        return False


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        first = value[0] if value else None
        if isinstance(first, Mapping):
            return f"list of {{{', '.join(printable(key, 20) for key in list(first)[:5])}}}"
        return "list"
    names = {str: "text", bool: "truth value", int: "number", float: "number", dict: "object"}
    return names.get(type(value), type(value).__name__)
