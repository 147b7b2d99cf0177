"""Which shape a dataset has, told from its first rows."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.prep.roles import printable, role_of, seen
from pipeline.prep.shapes import DIALOGUE_COLUMNS, PROMPT_COLUMNS, READERS, TURN_KEYS
from pipeline.prep.sources import Row
from pipeline.prep.turns import CHAT_COLUMNS, RowError, Turn

FIRST_ROWS: Final = 64
"""How many rows detection looks at, and at as many further on where they have no shape, as where a column is null."""

LAST_ROW: Final = 4096
LOOKED_BYTES: Final = 64 << 20
"""It looks no further than either."""

LOOKS: Final = 8  # columns that a line names
LISTED: Final = 50  # items of a list that are looked at
NESTED: Final = 6  # how deep
SPEAKER_KEYS: Final = ("role", "from", "speaker", "author", "who", "sender")

ENOUGH: Final = 0.5
"""The share of them that must read as a shape for it to be taken."""


@dataclass(frozen=True)
class Detected:
    """A shape, the share of the first rows that read as it, how many rows that were, and the columns they have.

    ``known``: of the rows that read so, the share in which every role is a known one. ``after``: rows before those.
    """

    shape: str
    sure: float
    rows: int
    columns: str = ""
    known: float = 1.0
    after: int = 0

    def words(self) -> str:
        """How sure it is, in words: ``messages, 98% of the first 64 rows read so``."""
        which = f"the {self.rows} rows after the first {self.after:,}" if self.after else f"the first {self.rows} rows"
        line = f"{self.shape}, {self.sure:.0%} of {which} read so"
        return line if self.known == 1.0 or not self.sure else f"{line}, {self.known:.0%} of them with known roles only"


class UnknownShapeError(Exception):
    """The first rows read as no shape; one line that says what they look like and what is nearest."""


def look(rows: Iterator[Row], shape: str) -> tuple[list[Row], Detected]:
    """Take the first rows of a source and tell their shape, which is ``shape`` unless that is "auto".

    The rows that were taken come back. Raises UnknownShapeError.
    """
    taken = list(itertools.islice(rows, FIRST_ROWS))
    found, unknown = _told(taken, shape)
    at = 0
    while found is None:
        at = len(taken)
        if at < LAST_ROW and sum(len(row.raw) for row in taken) < LOOKED_BYTES:
            taken += itertools.islice(rows, FIRST_ROWS)
        if len(taken) == at:
            raise unknown or UnknownShapeError("shape not recognised")
        found, _ = _told(taken[at:], shape)
    return taken, replace(found, after=at)


def decoded(rows: Iterable[Row]) -> Iterator[Any]:
    """What is in rows, without those that cannot be decoded."""
    for row in rows:
        try:
            yield row.load()
        except RowError:
            continue


def _told(rows: Sequence[Row], shape: str) -> tuple[Detected | None, UnknownShapeError | None]:
    given = list(decoded(rows))
    if shape != "auto" or not given:
        # Where no row can be decoded, every row will be counted as what is wrong with it.
        return named("messages" if shape == "auto" else shape, given), None
    try:
        return detect(given), None
    except UnknownShapeError as error:
        return None, error


def detect(rows: Sequence[Any]) -> Detected:
    """The shape that most of the first rows have; of equals, the most particular one. Raises UnknownShapeError."""
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        raise UnknownShapeError("shape not recognised: none of the first rows is an object with columns")
    scores = {shape: _fit(shape, objects) for shape in READERS}
    best = max(scores, key=lambda shape: _rank(shape, *scores[shape]))  # the first of equals, in READERS' order
    read, known = scores[best]
    if read < ENOUGH:
        raise UnknownShapeError(
            f"shape not recognised; columns seen: {looks(objects)}; {_roles(objects)}{_nearest(objects, scores)}; "
            f"expected {wanted('messages')}, or {wanted('pair')}; name it with --shape"
        )
    return Detected(best, read, len(objects), looks(objects, types=False), known / read)


def named(shape: str, rows: Sequence[Any]) -> Detected:
    """A shape that is given, and how well the first rows fit it."""
    objects = [row for row in rows if isinstance(row, Mapping)]
    read, known = _fit(shape, objects)
    whole = len(objects) / max(1, len(rows))
    return Detected(shape, read * whole, len(rows), looks(objects, types=False), known / read if read else 0.0)


def wanted(shape: str) -> str:
    """What a row of a shape has, in words."""
    if shape == "pair":
        return f"a column {', '.join(PROMPT_COLUMNS)}"
    if shape == "dialogue":
        return f"labelled text in a column {', '.join(DIALOGUE_COLUMNS)}"
    who, what = TURN_KEYS[shape]
    return f'a list of turns with "{who}" and "{what}"'


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


def turns_as(shape: str, row: Any) -> list[Turn]:
    """A row's turns, read as a shape; none where it is not of that shape."""
    try:
        return READERS[shape](row)
    except Exception:  # whatever a row holds
        return []


def _fit(shape: str, rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The share of the rows that read as a shape, and of those with roles that are known."""
    read = known = 0
    for row in rows:
        turns = turns_as(shape, row)
        read += bool(turns)
        known += bool(turns) and all(role_of(turn.label) for turn in turns)
    return read / max(1, len(rows)), known / max(1, len(rows))


def _rank(shape: str, read: float, known: float) -> float:
    """Any text may begin with a word and a colon: a dialogue of speakers nobody knows is the last guess."""
    return known + (read - known) / 10 if shape == "dialogue" else read


def _roles(rows: Sequence[Mapping[str, Any]]) -> str:
    """The values under keys that name speakers, wherever they are: ``roles seen: "asker" 240, …; ``."""
    labels = Counter(printable(label) for row in rows for label in _speakers(row, NESTED))
    return f"roles seen: {seen(labels)}; " if labels else ""


def _speakers(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, list) and depth:
        for item in value[:LISTED]:
            yield from _speakers(item, depth - 1)
    elif isinstance(value, Mapping) and depth:
        for key, item in value.items():
            if str(key).lower() in SPEAKER_KEYS and isinstance(item, str):
                yield item
            else:
                yield from _speakers(item, depth - 1)


def _nearest(rows: Sequence[Mapping[str, Any]], scores: Mapping[str, tuple[float, float]]) -> str:
    """The shape that rows come closest to, and what of it they lack."""
    best = max(scores, key=lambda shape: scores[shape][0])
    if scores[best][0]:
        return f"nearest: {best}, {scores[best][0]:.0%} of them"
    keys = {printable(key).lower() for row in rows for item in _objects(row, NESTED) for key in item}
    lists = {shape: sum(key in keys for key in pair) for shape, pair in TURN_KEYS.items()}
    near = max(lists, key=lambda shape: lists[shape])
    if lists[near] or any(column in CHAT_COLUMNS for row in rows for column in row):
        lacking = [f'"{key}"' for key in TURN_KEYS[near] if key not in keys]
        return f"nearest: {near}, " + (f"turns lack {' and '.join(lacking)}" if lacking else "its list is nowhere")
    names = [printable(column) for row in rows for column in row]
    for column in dict.fromkeys(names):
        if like := difflib.get_close_matches(column.lower(), PROMPT_COLUMNS, 1, 0.7):
            return f'nearest: pair, "{column}" is like "{like[0]}"'
    return "nearest: pair, no column of a known name"


def _objects(value: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """The objects in the lists of a row."""
    for item in value.values() if isinstance(value, Mapping) else value:
        if isinstance(item, list) and depth:
            yield from (one for one in item[:LISTED] if isinstance(one, Mapping))
            yield from _objects([one for one in item[:LISTED] if isinstance(one, list)], depth - 1)
        elif isinstance(item, Mapping) and depth:
            yield from _objects(item, depth - 1)


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
