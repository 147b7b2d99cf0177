"""config.toml from its bytes to a checked Config, or to every finding with its line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path as FilePath
from typing import Any, Final

from console.config.check import check
from console.config.decode import INVALID, Notes, decode_section
from console.config.errors import ConfigError, ConfigErrors
from console.config.schema import Config

LARGEST: Final = 4 * 2**20
"""Bytes beyond which a file is no config."""

_PLACE: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)")


def load(path: str | FilePath) -> Config:
    """Read and check a config file. Raises ConfigErrors with all findings; none of them hides another of its kind."""
    file = FilePath(path)
    try:
        with file.open("rb") as source:
            data = source.read(LARGEST + 1)
    except OSError as error:
        hint = "name the file with --config" if isinstance(error, FileNotFoundError) else ""
        raise ConfigErrors([ConfigError(str(path), 0, "", f"cannot be read: {error.strerror}", hint=hint)]) from None
    return parse(data, str(path))


def parse(data: bytes, file: str = "config.toml") -> Config:
    """Check the bytes of a config file; ``file`` is what errors call it."""
    if len(data) > LARGEST:
        raise ConfigErrors([ConfigError(file, 0, "", "larger than 4 MiB", allowed="a config file in TOML")])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"byte {data[error.start]:#04x} is not UTF-8"
        raise ConfigErrors([ConfigError(file, line, "", problem, hint="save the file as UTF-8")]) from None
    values = _values(text, file)
    notes = Notes(file, text, values)
    config = decode_section(Config, values, (), notes)
    if config is not INVALID and not notes.errors:
        check(config, notes)
    if notes.errors:
        raise ConfigErrors(notes.errors)
    assert isinstance(config, Config)
    return config


def _values(text: str, file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigErrors([ConfigError(file, 0, "", "nested too deeply")]) from None
    except ValueError as error:
        message = str(error)
        place = _PLACE.search(message)
        line = int(place[1]) if place and place[1] else text.count("\n") + 1
        problem = f"no valid TOML: {_PLACE.sub('', message)}"
        if place and place[2]:
            problem += f", column {place[2]}"
        problem = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in problem)
        raise ConfigErrors([ConfigError(file, line, "", problem, hint=_advice(message))]) from None


def _advice(message: str) -> str:
    if "overwrite" in message or "twice" in message:
        return "a key or section is there twice: keep one"
    if "Invalid value" in message:
        return 'text needs quotes ("…"), true and false are written small'
    if "Unclosed" in message or "Unterminated" in message:
        return "close the bracket or the quotes"
    return "keys are name = value, sections [name]"
