"""The vocabulary that the schema is written in: kinds of values, and what changing a key does."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

UNTOLD: Final = 10**9
"""A bound from here on only keeps numbers sane; messages leave it out."""

KeyClass = Literal["content", "run", "live"]
"""``content`` changes what is written, ``run`` only how the jobs run, ``live`` takes effect without a restart."""

_MISSING: Any = dataclasses.MISSING


@dataclass(frozen=True)
class Bytes:
    """Marks a whole number that is a size."""


@dataclass(frozen=True)
class Seconds:
    """Marks a number that is a duration."""


@dataclass(frozen=True)
class Range:
    """Bounds of a number, both included unless ``above`` (low excluded) or ``below`` (high excluded) says otherwise."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        return (value > self.low if self.above else value >= self.low) and (
            value < self.high if self.below else value <= self.high
        )

    def words(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'above' if self.above else 'at least'} {self.low:g}")
        if self.high < UNTOLD:
            parts.append(f"{'below' if self.below else 'at most'} {self.high:g}")
        return " and ".join(parts)


@dataclass(frozen=True)
class Pattern:
    """The form of a text, and that form in words."""

    form: re.Pattern[str]
    words: str


def _text(form: str, words: str) -> Pattern:
    return Pattern(re.compile(form, re.ASCII), words)


Size = Annotated[int, Bytes()]
Duration = Annotated[float, Seconds()]
Interval = Annotated[float, Seconds(), Range(0.1)]
Count = Annotated[int, Range(1, 10**12)]
Amount = Annotated[int, Range(0, 10**12)]
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(0, above=True)]
Port = Annotated[int, Range(1, 65535)]

Filled = Annotated[str, _text(r"[^\x00-\x1f\x7f]+", "a text that is not empty, on one line")]
Word = Annotated[
    str, _text(r"(?:[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*)?", "a text on one line that does not begin with a dash")
]
FilledWord = Annotated[
    str, _text(r"[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*", "a text that is not empty, on one line, without a dash in front")
]
Name = Annotated[str, _text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "letters, digits, . _ and -, at most 64")]
Key = Annotated[str, _text(r"[A-Za-z][A-Za-z0-9_-]{0,31}", "a letter, then letters, digits, _ and -, at most 32")]
Variable = Annotated[str, _text(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of an environment variable")]
SecretName = Annotated[
    str,
    _text(
        r"(?:[A-Za-z_][A-Za-z0-9_]{0,127})?",
        'the name of a secret, never its value: choose a name and store the value with "draftdeck secret set NAME"',
    ),
]
Folder = Annotated[str, _text(r"/[^\x00-\x1f\x7f]*", "an absolute path in the container")]
ClassName = Annotated[str, _text(r"[A-Za-z][A-Za-z0-9_]{0,127}", "the name of a model class")]
Version = Annotated[str, _text(r"\d{1,6}(?:\.\d{1,6}){1,3}[A-Za-z0-9.+]{0,32}", 'a version such as "0.5.23"')]
FlagName = Annotated[str, _text(r"[a-z0-9][a-z0-9-]{0,79}", "a flag without its dashes in front, such as tp-size")]
FlagValue = str | int | float | bool


def _key(kind: KeyClass, default: Any, factory: Callable[[], Any] | None) -> Any:
    metadata = {"class": kind}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def content(default: Any = _MISSING, *, factory: Callable[[], Any] | None = None) -> Any:
    """A key that changes what is written. Without a default it has to be given."""
    return _key("content", default, factory)


def run(default: Any = _MISSING, *, factory: Callable[[], Any] | None = None) -> Any:
    """A key that changes how jobs run, not what they write."""
    return _key("run", default, factory)


def live(default: Any = _MISSING, *, factory: Callable[[], Any] | None = None) -> Any:
    """A key that takes effect on jobs that run."""
    return _key("live", default, factory)


def class_of(field: dataclasses.Field[Any]) -> KeyClass | None:
    """What changing a key does; None for a section."""
    kind: KeyClass | None = field.metadata.get("class")
    return kind
