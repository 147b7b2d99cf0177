"""``python -m pipeline.demo.questions --out DIR --count N``: thousands of questions on Python's documented functions.

No two are the same. They are what a coding assistant is asked, in length and kind: an example, a comparison, an
explanation of the documentation's words, a repair. One JSON line a question: ``{"messages": [{"role": "user", …}]}``.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pipeline.demo.texts import MODULES, documented
from pipeline.files import write_atomically

MORE_MODULES: Final = (
    "abc", "array", "ast", "asyncio", "atexit", "binascii", "bz2", "cmd", "code", "compileall", "concurrent.futures",
    "configparser", "contextvars", "copyreg", "ctypes", "dataclasses", "dbm", "dis", "doctest",
    "email.message", "email.utils", "encodings", "enum", "errno", "faulthandler", "filecmp", "fileinput", "ftplib",
    "gc", "getopt", "getpass", "gettext", "graphlib", "gzip", "html.parser", "http.client", "http.cookies",
    "http.server", "imaplib", "importlib.metadata", "importlib.util", "inspect", "logging", "logging.handlers", "lzma",
    "mailbox", "marshal", "mmap", "multiprocessing", "multiprocessing.pool", "netrc", "numbers", "optparse", "pdb",
    "pickle", "pickletools", "platform", "plistlib", "poplib", "posixpath", "pstats", "py_compile", "pyclbr", "pydoc",
    "quopri", "resource", "rlcompleter", "runpy", "sched", "select", "selectors", "shelve", "signal", "smtplib",
    "socketserver", "ssl", "stringprep", "subprocess", "symtable", "sys", "sysconfig", "termios", "trace",
    "tracemalloc", "tty", "typing", "unittest", "unittest.mock", "urllib.request", "urllib.robotparser", "wave",
    "webbrowser", "xml.dom.minidom", "xml.etree.ElementTree", "xml.sax.handler", "xmlrpc.client", "zipapp", "zipimport",
    "zoneinfo",
)  # fmt: skip

FORMS: Final = (
    "What does `{name}` do in Python? Explain it to a beginner.",
    "Write a short Python script that uses `{name}`, with comments.",
    "Show three different ways to use `{name}` in Python, with code.",
    "My colleague says I should use `{name}`. What is it for, and what would I do without it?",
    'Explain this sentence from the Python documentation of `{name}`: "{summary}"',
    "Write a unit test for a function that calls `{name}`.",
    "What mistakes do people make with `{name}`, and how are they avoided?",
    "When would you use `{name}` from the module `{module}`, and when not?",
    "Write a docstring with an example for `{name}`.",
    "Give a realistic example of `{name}` in a web application.",
    "Give a realistic example of `{name}` in a data processing script.",
    "What are the arguments of `{name}`, and what does it return?",
    "Which exceptions can `{name}` raise? Show how to handle them.",
    "Rewrite `{name}` in plain Python, as simply as possible.",
    "What is the difference between `{name}` and `{other}`?",
    "I wrote a program with `{name}` and it does not work. Which steps do you take to find the error?",
    "Is `{name}` safe to call from several threads? Explain why.",
    "How fast is `{name}`, and what could be faster for large inputs?",
    "Write an interview question about `{name}`, and its answer.",
    "Summarize the module `{module}` in Python and say where `{name}` belongs in it.",
    "Write a function called `{word}_example` that shows `{name}`, and call it.",
    "How would I log every call of `{name}` in a running program?",
    "Translate the idea of `{name}` into JavaScript. Does it have something like it?",
    'Write a short story in which a programmer discovers `{name}`: "{summary}"',
)


def questions(count: int, seed: int = 0) -> list[str]:
    """``count`` of them, drawn at random. Raises ValueError where there are not so many."""
    functions = documented(MODULES + MORE_MODULES)
    places = [(form, number) for form in range(len(FORMS)) for number in range(len(functions))]
    if count > len(places):
        raise ValueError(f"there are {len(places):,} questions, not {count:,}")
    draw = random.Random(seed)  # noqa: S311 - reproducible, no secret
    asked = []
    for form, number in draw.sample(places, count):
        name, summary = functions[number]
        module, _, word = name.rpartition(".")
        other = functions[(number + 1) % len(functions)][0]
        asked.append(FORMS[form].format(name=name, module=module, word=word, summary=summary[:300], other=other))
    return asked


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.demo.questions", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="gets train.jsonl")
    parser.add_argument("--count", type=int, default=10_000, metavar="N", help="questions (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the questions."""
    parser = build_parser()
    given = parser.parse_args(argv)
    try:
        asked = questions(given.count, given.seed)
    except ValueError as error:
        parser.error(f"--count {given.count}: {error}")
    rows = ({"messages": [{"role": "user", "content": question}]} for question in asked)
    given.out.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out / "train.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    print(f"{len(asked):,} questions in {given.out / 'train.jsonl'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
