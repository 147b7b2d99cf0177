"""Whatever the rows are: every one is kept or dropped for a reason, and the stage ends."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.prep.settings import SHAPES
from pipeline.prep.tally import REASONS
from pipeline.tokens import Tokenizer
from tests.prep import kimi, small
from tests.prep.small import run_prep

CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd":"ls"}'}}
CALLING = [
    {"role": "user", "content": "Run ls"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": 'run {"cmd":"ls"} gave r', "tool_call_id": "c1"},
    {"role": "assistant", "content": "<think>t</think>a", "reasoning_content": None},
]
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}
ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 1},
    {"messages": json.dumps([{"role": "user", "content": "q2"}, {"role": "assistant", "content": "a"}])},
    {"system": "S", "conversations": [{"from": "human", "value": "q3"}, {"from": "gpt", "value": "a"}]},
    {"system": "SYSTEM: s", "chat": "USER: q4\n\n\nASSISTANT: a <|endoftext|>\n\n\nFUNCTION RESPONSE: {}"},
    {"trajectory": [{"role": "user", "text": "q5", "system_prompt": None}, {"role": "ai", "text": "a"}]},
    {"input": "q6", "output": "a", "id": "h", "unit_tests": '["x"]'},
    {"messages": CALLING, "tools": [TOOL], "id": 2},
    {"trajectory": [[{"role": "system", "text": None, "system_prompt": "S"}], [{"role": "user", "text": "q8"}]]},
    {"raw_conv_json": json.dumps(CALLING), "tools": json.dumps([TOOL["function"]])},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "q9"}]}, {"role": "bot", "content": "a"}] * 3},
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.sampled_from(["\ud800", "", "[{", '[{"role":"user","content":"j"}]', "USER: x", "<|im_end|>", "\x1b[2J"]),
    st.sampled_from([CALL, [CALL], TOOL, [TOOL], "[[", "{", {"messages": CALLING}, {"function": {"name": 1}}]),
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
        accident = draw(st.sampled_from(["replace", "remove", "nest", "wrap", "write", "label"]))
        if accident == "replace":
            container[key] = copy.deepcopy(draw(JUNK))  # it may be mutated next
        elif accident == "nest":
            container[key] = [container[key]]
        elif accident == "wrap":
            container[key] = {draw(st.sampled_from(["messages", "turn", "data"])): container[key]}
        elif accident == "write":
            container[key] = json.dumps(container[key])
        elif accident == "label" and isinstance(container, dict) and key in ("role", "from"):
            container[key] = draw(st.sampled_from(["asker", "GPT", "tool", "system", "Human "]))
        elif isinstance(container, dict):
            del container[key]
    return draw(st.sampled_from([row, row, row, [row], draw(JUNK)]))


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, target: Path) -> dict[str, Path]:
    """A template that shows no tools, one that writes their JSON, one that forgets thinking, with a slow tokenizer."""
    folder = tmp_path_factory.mktemp("targets")
    calling = small.make_tokenizer(folder / "calling", small.CALLING)
    return {"plain": target, "calling": calling, "kimi": kimi.make(folder / "kimi")}


@pytest.fixture(scope="module")
def tokenizers(targets: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: tokens.load(str(folder), trust_remote_code=True) for name, folder in targets.items()}


def strangers(record: dict[str, Any], tokenizer: Tokenizer) -> list[str]:
    """What users and tools said and the target did not, where it carries loss."""
    own = [message for message in record["messages"] if message["role"] == "assistant"]
    said = [str(container[key]) for container, key in places(own)]
    others = [message["content"].strip() for message in record["messages"] if message["role"] in ("user", "tool")]
    others = [
        text for text in others if len(text) > 3 and text != "<|im_end|>" and not any(text in one for one in said)
    ]
    groups = itertools.groupby(zip(record["input_ids"], record["loss_mask"], strict=True), key=lambda pair: pair[1])
    written = [tokenizer.decode([token for token, _ in group]) for loss, group in groups if loss]
    return [text for text in others if any(text in one for one in written)]


@example([ROWS[6]], "answers", "messages", None, None, "assistant", "calling", 2048, "drop")
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
    model=st.sampled_from(["plain", "calling", "kimi"]),
    context=st.sampled_from([40, 120, 2048]),
    over=st.sampled_from(["drop", "cut"]),
)
def test_read_is_kept_and_dropped(
    tmp_path_factory: pytest.TempPathFactory, targets: dict[str, Path], tokenizers: dict[str, Tokenizer],
    rows: list[Any], kind: str, shape: str, take: int | None, group: str | None, turns: str, model: str,
    context: int, over: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("rows")
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        outcome = run_prep(
            patch, folder, source, targets[model], kind=kind, shape=shape, take=take, group=group, train_turns=turns,
            trust_remote_code=True, context_length=context, max_new_tokens=20 if kind == "prompts" else None,
            over_context=over,
        )  # fmt: skip
    recognised = "shape not recognised" not in outcome.result.message
    assert outcome.code == (0 if outcome.records else 3)
    if not outcome.records and "the loss mask is wrong for" in outcome.result.message:
        return  # a set that is refused as a whole keeps nothing of what it counted
    assert outcome.result.records == len(outcome.records)
    if rows and recognised:
        count = outcome.result.datasets["T1"]
        assert count.read == len(rows) == count.kept + sum(count.dropped.values())
        assert count.kept == len(outcome.records)
    assert all(len(record.get("loss_mask", [])) == len(record.get("input_ids", [])) for record in outcome.records)
    room = context - (20 if kind == "prompts" else 0)
    assert all(len(record.get("input_ids") or record["prompt_ids"]) <= room for record in outcome.records)
    assert all(
        0 < sum(record["loss_mask"]) < len(record["loss_mask"]) for record in outcome.records if kind == "answers"
    )
    if kind == "answers" and turns == "assistant":
        assert not [text for record in outcome.records for text in strangers(record, tokenizers[model])]
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
