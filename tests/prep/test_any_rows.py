"""Whatever the rows are: every one is kept or dropped for a reason, and the stage ends."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.prep.settings import SHAPES
from pipeline.prep.tally import REASONS
from tests.prep.small import run_prep

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 1},
    {"messages": json.dumps([{"role": "user", "content": "q2"}, {"role": "assistant", "content": "a"}])},
    {"system": "S", "conversations": [{"from": "human", "value": "q3"}, {"from": "gpt", "value": "a"}]},
    {"system": "SYSTEM: s", "chat": "USER: q4\n\n\nASSISTANT: a <|endoftext|>\n\n\nFUNCTION RESPONSE: {}"},
    {"trajectory": [{"role": "user", "text": "q5", "system_prompt": None}, {"role": "ai", "text": "a"}]},
    {"input": "q6", "output": "a", "id": "h", "unit_tests": '["x"]'},
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.sampled_from(["\ud800", "", "[{", '[{"role":"user","content":"j"}]', "USER: x", "<|im_end|>", "\x1b[2J"]),
    st.sampled_from([[], {}, [{}], [[]], [{"role": "user", "content": "n"}], {"role": "user", "content": "n"}]),
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a value."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found += [(value, key), *places(value[key])]
    return found


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A row of a public schema after some accidents: values replaced, keys removed, labels swapped, nesting."""
    row = copy.deepcopy(draw(st.sampled_from(ROWS)))
    for _ in range(draw(st.integers(0, 3))):
        spots = places(row)
        if not spots:
            break
        container, key = draw(st.sampled_from(spots))
        accident = draw(st.sampled_from(["replace", "remove", "nest", "label"]))
        if accident == "replace":
            container[key] = copy.deepcopy(draw(JUNK))  # it may be mutated next
        elif accident == "nest":
            container[key] = [container[key]]
        elif accident == "label" and isinstance(container, dict) and key in ("role", "from"):
            container[key] = draw(st.sampled_from(["asker", "GPT", "tool", "system", "Human "]))
        elif isinstance(container, dict):
            del container[key]
    return draw(st.sampled_from([row, row, row, [row], draw(JUNK)]))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rows=st.lists(mutated(), max_size=25),
    kind=st.sampled_from(["answers", "prompts"]),
    shape=st.sampled_from(["auto", *SHAPES]),
    take=st.sampled_from([None, 3]),
    group=st.sampled_from([None, "id"]),
    turns=st.sampled_from(["assistant", "all-but-system"]),
)
def test_read_is_kept_and_dropped(
    tmp_path_factory: pytest.TempPathFactory, target: Path, rows: list[Any], kind: str, shape: str, take: int | None,
    group: str | None, turns: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("rows")
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        outcome = run_prep(
            patch, folder, source, target, kind=kind, shape=shape, take=take, group=group, train_turns=turns
        )
    recognised = "shape not recognised" not in outcome.result.message
    assert outcome.code == (0 if outcome.records else 3)
    assert outcome.result.records == len(outcome.records)
    if rows and recognised:
        count = outcome.result.datasets["T1"]
        assert count.read == len(rows) == count.kept + sum(count.dropped.values())
        assert count.kept == len(outcome.records)
    assert all(len(record.get("loss_mask", [])) == len(record.get("input_ids", [])) for record in outcome.records)
    assert outcome.result.message.isprintable()


def test_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"messages": [{"role": f"role {number}", "content": "x"}]} for number in range(1000)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = run_prep(monkeypatch, tmp_path, source, target)
    count = outcome.result.datasets["T1"]
    assert sum(count.dropped.values()) == 1000
    assert len(count.dropped) <= REASONS + 1
    assert len(outcome.result.message) < 1000
