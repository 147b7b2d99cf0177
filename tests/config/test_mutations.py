"""Whatever is done to a config, the answer is a Config or errors that a person can act on."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import plan
from console.config import ConfigErrors, parse
from tests.config.sources import TEXT, errors_of

VALUES = tomllib.loads(TEXT)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "EAGLE", "prep:*", "merge", "short", "baseline", "1 GB", "10 m", "http://127.0.0.1:30000"]),
    st.dates(),
)
ANYTHING = st.recursive(
    SCALARS.filter(lambda value: value is not None),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SLOW = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = []
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += [(*path, name), *_places(inner, (*path, name))]
    return found


PLACES = _places(VALUES)


def _judge(text: str) -> None:
    try:
        config = parse(text.encode())
    except ConfigErrors as errors:
        assert errors.errors
        lines = text.count("\n") + 1
        for error in errors.errors:
            assert 1 <= error.line <= lines
            assert error.found
            assert str(error).isprintable()
        return
    made = plan.build(config, "0" * 16)
    assert len({job.name for job in made.jobs}) == len(made.jobs)
    for job in made.jobs:
        assert all("\0" not in word for word in (*job.argv, *job.env.values()))
    assert plan.describe(config, made)


@SLOW
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING | st.none()), min_size=1, max_size=3))
def test_values_are_replaced_and_removed(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    values = copy.deepcopy(VALUES)
    for path, value in changes:
        _put(values, path, value)
    _judge(tomlkit.dumps(values))


def _put(values: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set or, with None, remove what stands at a path, where it still exists."""
    for part in path[:-1]:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return
    last = path[-1]
    if isinstance(values, dict) and value is None:
        values.pop(last, None)
    elif value is not None and (
        isinstance(values, dict) or (isinstance(values, list) and isinstance(last, int) and last < len(values))
    ):
        values[last] = value


@SLOW
@given(st.integers(0, len(TEXT)), st.integers(0, 40), st.text(max_size=20))
def test_text_is_cut_out_and_put_in(start: int, length: int, new: str) -> None:
    _judge(TEXT[:start] + new.encode(errors="replace").decode() + TEXT[start + length :])


@SLOW
@given(st.data())
def test_lines_are_moved(data: st.DataObject) -> None:
    lines = TEXT.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        line = lines.pop(data.draw(st.integers(0, len(lines) - 1)))
        lines.insert(data.draw(st.integers(0, len(lines))), line)
    _judge("\n".join(lines))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    assert errors_of(data)
