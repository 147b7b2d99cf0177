"""Text to make small datasets of: dialogues of the chatterbot corpus, and what Python's own functions say they do."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import yaml

MODULES: Final = (
    "argparse", "base64", "bisect", "calendar", "cmath", "codecs", "collections", "colorsys", "contextlib", "copy",
    "csv", "datetime", "decimal", "difflib", "email", "fnmatch", "fractions", "functools", "glob", "hashlib", "heapq",
    "hmac", "html", "io", "ipaddress", "itertools", "json", "keyword", "linecache", "locale", "math",
    "mimetypes", "operator", "os", "os.path", "pathlib", "pprint", "queue", "random", "re", "reprlib", "secrets",
    "shlex", "shutil", "socket", "sqlite3", "stat", "statistics", "string", "struct", "tarfile", "tempfile",
    "textwrap", "threading", "time", "timeit", "tokenize", "traceback", "types", "unicodedata", "urllib.parse",
    "uuid", "warnings", "weakref", "xml.sax.saxutils", "zipfile", "zlib",
)  # fmt: skip
"""Documented modules that every Python has and that do nothing when they are imported."""

TEMPLATES: Final = (
    "What does Python's {name} do? Answer in one sentence.",
    "Explain {name} in Python in a few words.",
    "When would I use {name} in Python?",
    "Write one line of Python that uses {name}.",
    "What is the purpose of {name} in the Python standard library?",
    "How do I call {name} in Python?",
)


@dataclass(frozen=True)
class Item:
    """A question and an answer people gave to it."""

    question: str
    answer: str


def items(stride: int, offset: int, count: int) -> list[Item]:
    """``count`` questions, no two the same: one part of ``stride`` of the dialogues' first turns, then functions.

    Raises ValueError where there are not so many.
    """
    spoken = _questions()[offset::stride]
    functions = documented(MODULES)
    chosen = spoken[: count - count // 2]
    number = 0
    while len(chosen) < count:
        if number >= len(functions) * len(TEMPLATES):
            raise ValueError(f"there is text for {len(chosen):,} questions a dataset, not for {count:,}")
        name, summary = functions[(offset * len(functions) // stride + number) % len(functions)]
        question = TEMPLATES[number // len(functions)].format(name=f"`{name}`")
        chosen.append(Item(question, summary))
        number += 1
    return chosen


def _questions() -> list[Item]:
    """The first turns of the English dialogues that are questions, each once, with the turn that follows."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Item] = {}
    folder = files("chatterbot_corpus") / "data" / "english"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".yml"):
            continue
        for turns in yaml.load(file.read_text(encoding="utf-8"), loader)["conversations"]:  # noqa: S506 both are safe loaders
            said = [str(turn).strip() for turn in turns]
            if len(said) > 1 and said[0].endswith("?") and said[1] and len(said[0]) > 12:
                found.setdefault(said[0].lower(), Item(said[0][0].upper() + said[0][1:], said[1]))
    return list(found.values())


def documented(modules: Sequence[str]) -> list[tuple[str, str]]:
    """Qualified name and summary of every documented function and class in the modules, each once."""
    found: dict[int, tuple[str, str]] = {}
    for module_name in modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module(module_name)
            for name, thing in sorted(vars(module).items()):
                if name.startswith("_") or not (inspect.isroutine(thing) or inspect.isclass(thing)):
                    continue
                summary = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
                if len(summary) > 40 and "->" not in summary[:80]:
                    found.setdefault(id(thing), (f"{module_name}.{name}", summary))
    return sorted(found.values())
