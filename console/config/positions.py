"""On which line of the file every key stands, from tomlkit's lossless document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import tomlkit
from tomlkit.container import Container
from tomlkit.items import AoT, Array, InlineTable, Item, Key, Null, Table, Whitespace

from console.config.errors import Path

START: Final[Path] = ()


class Positions:
    """Lines by path, from 1. A path without a line of its own has its nearest parent's; 0: not known."""

    def __init__(self, lines: Mapping[Path, int]) -> None:
        self._lines = dict(lines)

    def line(self, path: Path) -> int:
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 0)


def read_positions(text: str) -> Positions:
    """Walk the document in the order of its text and count lines. One whose lines do not add up has no positions."""
    try:
        document = tomlkit.parse(text)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return Positions({})
    walk = _Walk()
    walk.container(document, START)
    return Positions(walk.lines if walk.cursor == 1 + text.count("\n") else {})


def _has_header(table: Table) -> bool:
    """Whether the table has a line of its own: [a.b] alone names [a] without writing it."""
    inner = (item for _, item in table.value.body)
    return not table.is_super_table() or any(not isinstance(item, Table | AoT | Whitespace | Null) for item in inner)


class _Walk:
    def __init__(self) -> None:
        self.cursor = 1
        self.lines: dict[Path, int] = {START: 1}

    def mark(self, path: Path) -> None:
        # A table that is opened again further down keeps the line of its first opening.
        self.lines.setdefault(path, self.cursor)

    def skip(self, text: str) -> None:
        self.cursor += text.count("\n")

    def container(self, body: Container, path: Path) -> None:
        for key, item in body.body:
            if key is None:
                self.skip(item.trivia.indent if isinstance(item, Table) else item.as_string())
            elif isinstance(item, AoT):
                for index, table in enumerate(item.body):
                    self.table(key, table, (*path, key.key), index)
            elif isinstance(item, Table):
                self.table(key, item, (*path, key.key), None)
            else:
                self.simple(item, (*path, key.key))

    def table(self, key: Key, table: Table, path: Path, index: int | None) -> None:
        header = not key.is_dotted() and _has_header(table)
        if header or table.trivia.indent == "\n":
            self.skip(table.trivia.indent)
        self.mark(path)
        if index is not None:
            path = (*path, index)
        if header:
            # The table's own header, even where [a.b] above it has named [a] already.
            self.lines[path] = self.cursor
            self.skip(table.trivia.trail)
        self.container(table.value, path)

    def simple(self, item: Item, path: Path) -> None:
        self.skip(item.trivia.indent)
        self.mark(path)
        start = self.cursor
        if isinstance(item, InlineTable):
            self.inside(item, path)
        elif isinstance(item, Array):
            self.elements(item, path)
        self.cursor = start
        self.skip(item.as_string())
        self.skip(item.trivia.trail)

    def inside(self, table: InlineTable, path: Path) -> None:
        for key, item in table.value.body:
            if key is not None:
                self.mark((*path, key.key))
                if isinstance(item, InlineTable):
                    self.inside(item, (*path, key.key))

    def elements(self, array: Array, path: Path) -> None:
        index = 0
        # Array keeps its layout, blanks and comments included, only in this attribute.
        for group in array._value:
            for part in group:
                if part is group.value and not part.as_string().isspace() and part.as_string():
                    self.mark((*path, index))
                    if isinstance(part, InlineTable):
                        self.inside(part, (*path, index))
                    index += 1
                self.skip(part.as_string())
