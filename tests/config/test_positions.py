"""Lines of keys, in every way that TOML can write them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from console.config.errors import Path
from console.config.positions import read_positions
from tests.config.sources import TEXT

EVERY_FORM = '''# first
a = 1
b.c = 2

[x.y.z]  # header before its parents
k = [
  1, # one

  2,
]
s = """
two
lines"""
t = { p = 1, q = { r = 2 } }

[x]
w = 1
u.v = 3

  [x.y]
  f = "g"
[[many]]
n = 1
[[many]]
n = 2

[other]
[x.late]
g = [{a = 1, b = 2},
     {a = 3}]
"odd key" = 1
'''

LINES: dict[Path, int] = {
    ("a",): 2,
    ("b", "c"): 3,
    ("x", "y", "z"): 5,
    ("x", "y", "z", "k"): 6,
    ("x", "y", "z", "k", 0): 7,
    ("x", "y", "z", "k", 1): 9,
    ("x", "y", "z", "s"): 11,
    ("x", "y", "z", "t", "q", "r"): 14,
    ("x",): 16,
    ("x", "w"): 17,
    ("x", "u", "v"): 18,
    ("x", "y"): 20,
    ("x", "y", "f"): 21,
    ("many", 0): 22,
    ("many", 1, "n"): 25,
    ("x", "late"): 28,
    ("x", "late", "g", 0, "b"): 29,
    ("x", "late", "g", 1, "a"): 30,
    ("x", "late", "odd key"): 31,
}


def test_every_form_has_its_line() -> None:
    for text in (EVERY_FORM, EVERY_FORM.replace("\n", "\r\n")):
        positions = read_positions(text)
        assert {path: positions.line(path) for path in LINES} == LINES


def test_a_key_that_is_not_there_has_its_parents_line() -> None:
    positions = read_positions(EVERY_FORM)
    assert positions.line(("x", "y", "f", "deeper")) == 21
    assert positions.line(("nowhere",)) == 1


def test_every_key_of_the_real_config_stands_on_its_line() -> None:
    lines = TEXT.splitlines()
    positions = read_positions(TEXT)
    paths = list(_paths(tomllib.loads(TEXT), ()))
    assert len(paths) > 200
    for path in paths:
        assert str(path[-1]) in lines[positions.line(path) - 1]


def _paths(value: dict[str, Any], path: Path) -> Iterator[Path]:
    for name, inner in value.items():
        yield (*path, name)
        if isinstance(inner, dict):
            yield from _paths(inner, (*path, name))
