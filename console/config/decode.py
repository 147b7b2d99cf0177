"""TOML values to the schema's dataclasses. Every value that does not fit is noted; none stops the others."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Union

from console.config.errors import ConfigError, Path, dotted, nearest, quote
from console.config.fields import Bytes, Pattern, Range, Seconds
from console.config.positions import Positions, read_positions
from console.config.units import DURATION_WORDS, SIZE_WORDS, parse_duration, parse_size

INVALID: Final = object()
"""Stands for a value that was refused; its error is noted already."""

_WORDS: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class Notes:
    """The findings of one file as they come in. Lines are looked up only when there is something to say."""

    def __init__(self, file: str, text: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self.text = text
        self.values = values
        self.errors: list[ConfigError] = []

    @functools.cached_property
    def positions(self) -> Positions:
        return read_positions(self.text)

    def has(self, path: Path) -> bool:
        """Whether the file gives this key itself, so that its value is no default."""
        found: Any = self.values
        for part in path:
            if not isinstance(found, Mapping) or part not in found:
                return False
            found = found[part]
        return True

    def add(self, path: Path, found: str, *, allowed: str = "", hint: str = "") -> None:
        self.errors.append(ConfigError(self.file, self.positions.line(path), dotted(path), found, allowed, hint))


_FIELDS: dict[Any, dict[str, Any]] = {}


def fields_of(section: type[Any]) -> dict[str, Any]:
    """A section's keys and their types, with what ``Annotated`` says of them."""
    if section not in _FIELDS:
        hints = typing.get_type_hints(section, include_extras=True)
        _FIELDS[section] = {field.name: hints[field.name] for field in dataclasses.fields(section)}
    return _FIELDS[section]


def decode_section(section: type[Any], value: Any, path: Path, notes: Notes, base: Any = None) -> Any:
    """Make a ``section`` of a table. What is not given comes from ``base``, else from the section's defaults."""
    if not isinstance(value, Mapping):
        notes.add(path, f"given {quote(value)}", allowed=f"a table, [{dotted(path)}]")
        return INVALID
    known = fields_of(section)
    values: dict[str, Any] = {}
    for name, given in value.items():
        if name in known:
            # A section's class attributes are its defaults: what a section within it is written over.
            fallback = getattr(section if base is None else base, name, None)
            values[name] = decode(known[name], given, (*path, name), notes, fallback)
        else:
            _unknown(section, name, path, notes)
    for field in dataclasses.fields(section):
        if field.name in value:
            continue
        if base is not None:
            values[field.name] = getattr(base, field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            noun = "section" if not path else "key"
            notes.add(path, f'{noun} "{field.name}" is missing', hint="add it", allowed=words_of(known[field.name]))
            values[field.name] = INVALID
    if any(item is INVALID for item in values.values()):
        return INVALID
    return section(**values)


def _unknown(section: type[Any], name: str, path: Path, notes: Notes) -> None:
    known = fields_of(section)
    hint = nearest(name, known)
    if not hint:
        homes = [home for home in places_of(name) if home != dotted(path)]
        hint = f"it belongs in {' or '.join(f'[{home}]' for home in homes)}" if homes else ""
    notes.add((*path, name), "unknown key", hint=hint, allowed=", ".join(known))


def decode(kind: Any, value: Any, path: Path, notes: Notes, base: Any = None) -> Any:
    """The value as ``kind``, or INVALID with the reason noted. ``base``: the section that this one is written over."""
    marks: tuple[Any, ...] = ()
    origin = typing.get_origin(kind)
    if origin is Annotated:
        kind, *rest = typing.get_args(kind)
        marks, origin = tuple(rest), typing.get_origin(kind)
    if kind is Any:
        return _json(value, path, notes)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return decode_section(kind, value, path, notes, base)
    if origin in (Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        return (
            decode(members[0], value, path, notes, base) if len(members) == 1 else _any_of(members, value, path, notes)
        )
    if origin is Literal:
        return _choice(typing.get_args(kind), value, path, notes)
    if origin is tuple:
        return _array(typing.get_args(kind)[0], value, path, notes)
    if origin is dict:
        return _table(typing.get_args(kind)[0], typing.get_args(kind)[1], value, path, notes)
    return _plain(kind, value, marks, path, notes)


def _plain(kind: type, value: Any, marks: tuple[Any, ...], path: Path, notes: Notes) -> Any:
    result = _convert(kind, value, marks)
    if result is None or not all(_holds(mark, result) for mark in marks):
        notes.add(path, f"given {quote(value)}", allowed=_plain_words(kind, marks))
        return INVALID
    return result


def _convert(kind: type, value: Any, marks: tuple[Any, ...]) -> Any:
    if any(isinstance(mark, Bytes) for mark in marks):
        return parse_size(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if any(isinstance(mark, Seconds) for mark in marks):
        return parse_duration(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if isinstance(value, bool):
        return value if kind is bool else None
    if kind is float and isinstance(value, int | float):
        # A whole number beyond the range of floats is as unfit as infinity.
        return float(value) if abs(value) < 1e300 and math.isfinite(value) else None
    if kind is str and isinstance(value, str):
        return value if "\0" not in value else None
    return value if isinstance(value, kind) else None


def _holds(mark: Any, value: Any) -> bool:
    if isinstance(mark, Range):
        return mark.holds(value)
    if isinstance(mark, Pattern):
        return mark.form.fullmatch(value) is not None
    return True


def _any_of(members: list[Any], value: Any, path: Path, notes: Notes) -> Any:
    for member in members:
        if type(value) is member and _convert(member, value, ()) is not None:
            return value
    notes.add(path, f"given {quote(value)}", allowed=", ".join(_WORDS[member] for member in members))
    return INVALID


def _choice(options: tuple[Any, ...], value: Any, path: Path, notes: Notes) -> Any:
    if isinstance(value, str) and value in options:
        return value
    hint = nearest(value, options) if isinstance(value, str) else ""
    notes.add(path, f"given {quote(value)}", hint=hint, allowed=", ".join(quote(option) for option in options))
    return INVALID


def _array(kind: Any, value: Any, path: Path, notes: Notes) -> Any:
    if not isinstance(value, list):
        notes.add(path, f"given {quote(value)}", allowed=f"an array, [ … ], of {words_of(kind)}")
        return INVALID
    items = tuple(decode(kind, item, (*path, index), notes) for index, item in enumerate(value))
    return INVALID if any(item is INVALID for item in items) else items


def _table(key_kind: Any, kind: Any, value: Any, path: Path, notes: Notes) -> Any:
    if not isinstance(value, Mapping):
        notes.add(path, f"given {quote(value)}", allowed=f"a table, [{dotted(path)}]")
        return INVALID
    items: dict[str, Any] = {}
    sound = True
    for name, given in value.items():
        for mark in typing.get_args(key_kind)[1:]:
            if not _holds(mark, name):
                notes.add((*path, name), f"given the name {quote(name)}", allowed=mark.words)
                sound = False
        items[name] = decode(kind, given, (*path, name), notes)
    return items if sound and not any(item is INVALID for item in items.values()) else INVALID


def _json(value: Any, path: Path, notes: Notes, depth: int = 0) -> Any:
    """A value that goes on as JSON: no dates, no infinity, nothing nested without end."""
    sound = depth < 16
    if isinstance(value, Mapping):
        sound = sound and all(_json(item, path, notes, depth + 1) is not INVALID for item in value.values())
    elif isinstance(value, list):
        sound = sound and all(_json(item, path, notes, depth + 1) is not INVALID for item in value)
    elif isinstance(value, float):
        sound = math.isfinite(value)
    elif isinstance(value, int):
        sound = abs(value) < 2**63
    else:
        sound = isinstance(value, str)
    if sound:
        return value
    if depth == 0:
        notes.add(path, f"given {quote(value)}", allowed="text, numbers, true, false, and arrays and tables of them")
    return INVALID


def words_of(kind: Any) -> str:
    """What is allowed, in words, for a type of the schema."""
    marks: tuple[Any, ...] = ()
    if typing.get_origin(kind) is Annotated:
        kind, *rest = typing.get_args(kind)
        marks = tuple(rest)
    origin = typing.get_origin(kind)
    if origin is Literal:
        return ", ".join(quote(option) for option in typing.get_args(kind))
    if origin is tuple:
        return f"an array of {words_of(typing.get_args(kind)[0])}"
    if origin is dict:
        return "a table"
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return f"a table of {', '.join(fields_of(kind))}"
    if origin in (Union, types.UnionType):
        return " or ".join(words_of(member) for member in typing.get_args(kind) if member is not type(None))
    return _plain_words(kind, marks)


def _plain_words(kind: Any, marks: tuple[Any, ...]) -> str:
    for mark in marks:
        if isinstance(mark, Bytes):
            return SIZE_WORDS
        if isinstance(mark, Seconds):
            return DURATION_WORDS
        if isinstance(mark, Pattern):
            return mark.words
    bounds = " ".join(mark.words() for mark in marks if isinstance(mark, Range))
    return f"{_WORDS.get(kind, 'a value')} {bounds}".strip()


def places_of(name: str) -> list[str]:
    """Every section of the schema that has a key of this name."""
    return [home for home, section in sections() if name in fields_of(section)]


def sections() -> list[tuple[str, type[Any]]]:
    """Every section of the schema with its name; a table of many is ``datasets.NAME``."""
    from console.config.schema import Config

    return list(_sections(Config, ""))


def _sections(section: type[Any], home: str) -> Iterator[tuple[str, type[Any]]]:
    if home:
        yield home, section
    for name, kind in fields_of(section).items():
        below = f"{home}.{name}" if home else name
        for member in (kind, *typing.get_args(kind)):
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                yield from _sections(member, f"{below}.NAME" if typing.get_origin(kind) is dict else below)
