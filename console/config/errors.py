"""What is wrong in a config file: every finding with its place, what was found and what to do."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str | int, ...]
"""Where a value stands: keys from the document down, positions in arrays as numbers."""

SHOWN: Final = 80
"""Characters of a given value that a message quotes."""

BARE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True)
class ConfigError:
    """One finding. ``line`` counts from 1; 0: no line is known (the file could not be read)."""

    file: str
    line: int
    key: str  # "datasets.B5.shape"; empty for the document as a whole
    found: str  # what is wrong, in words, with what was given
    allowed: str = ""  # what is allowed, in words
    hint: str = ""  # what to do

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        text = f"{place}: {self.key}: {self.found}" if self.key else f"{place}: {self.found}"
        if self.hint:
            text += f"; {self.hint}"
        if self.allowed:
            text += f"{' ' if text.endswith('?') else '; '}allowed: {self.allowed}"
        return text


class ConfigErrors(Exception):  # noqa: N818 - a collection of them
    """All findings of one file, in the order of its lines, each once however many servers share the place."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors: tuple[ConfigError, ...] = tuple(sorted(dict.fromkeys(errors), key=lambda error: error.line))
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def quote(value: Any) -> str:
    """A given value as the operator wrote it, on one line, shortened, without control characters."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def dotted(path: Path) -> str:
    """A path as TOML writes it: ``datasets.B5.shape``, ``draft.aux_layers[1]``; odd keys are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if BARE.fullmatch(part) else quote(part))
    return text


def nearest(given: str, names: Iterable[str]) -> str:
    """A question that offers the name most like ``given``, or "" where none is near."""
    folded = {name.casefold().replace("-", "_"): name for name in names}
    close = difflib.get_close_matches(given[:SHOWN].casefold().replace("-", "_"), list(folded), n=1, cutoff=0.6)
    return f'did you mean "{folded[close[0]]}"?' if close else ""
