"""The real config and how the tests break it."""

from __future__ import annotations

import functools
from pathlib import Path

from console.config import Config, ConfigError, ConfigErrors, parse

REAL = Path(__file__).parents[2] / "config.toml"
TEXT = REAL.read_text()


def changed(old: str, new: str, text: str = TEXT) -> str:
    """The text with its first ``old`` replaced; the test is wrong if there is none."""
    assert old in text, f"{old!r} is not in the config"
    return text.replace(old, new, 1)


def line_of(part: str, text: str) -> int:
    """The line on which the first ``part`` begins, from 1."""
    return text.count("\n", 0, text.index(part)) + 1


def errors_of(text: str | bytes) -> tuple[ConfigError, ...]:
    """What is found wrong; () for a sound config."""
    try:
        parse(text if isinstance(text, bytes) else text.encode())
    except ConfigErrors as errors:
        assert errors.errors, "ConfigErrors without an error in it"
        return errors.errors
    return ()


@functools.cache
def real() -> Config:
    return parse(TEXT.encode())
