"""A row of each public schema, with its pitfalls; the values are invented."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.prep.detect import UnknownShapeError, detect
from pipeline.prep.shapes import READERS, RowError, Turn

SWE_AGENT = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "<github_issue>it breaks"},
    {"role": "assistant", "content": "I look. <function=view><parameter=path>/x</parameter></function>"},
    {"role": "user", "content": "file contents"},
]
GLAIVE = (
    'USER: What is 1 + 1?\n\n\nASSISTANT: <functioncall> {"name": "add", "arguments": \'{"a": 1}\'} <|endoftext|>'
    '\n\n\nFUNCTION RESPONSE: {"r": 2}\n\n\nASSISTANT: It is 2. You wrote\nUSER: twice. <|endoftext|>'
)
NEBIUS = {
    "instance_id": "o__r-1",
    "trajectory": [
        {"role": "system", "system_prompt": "S", "text": None, "mask": False},
        {"role": "user", "text": "t", "system_prompt": None, "mask": False},
        {"role": "ai", "text": "a", "system_prompt": None, "mask": True},
    ],
    "exit_status": "submitted",
}
CODE = {
    "id": "h",
    "input": "Write add.",
    "output": "def add(a, b): ...",
    "domain": "generic",
    "llm_judgement": '{"k": 1}',
    "unit_tests": '["assert add(1, 2) == 3"]',
    "average_test_score": "0.9",
}


def turns(*pairs: tuple[str, str | None]) -> list[Turn]:
    return [Turn(label, text) for label, text in pairs]


@pytest.mark.parametrize(
    ("row", "shape", "expected"),
    [
        pytest.param(
            {"messages": SWE_AGENT}, "messages", turns(*((m["role"], m["content"]) for m in SWE_AGENT)), id="DeepSWE"
        ),
        pytest.param(
            {"messages": json.dumps(SWE_AGENT), "resolved": True},
            "messages",
            turns(*((m["role"], m["content"]) for m in SWE_AGENT)),
            id="SWE-smith, JSON in a string",
        ),
        pytest.param(
            {"prompt": "q", "prompt_id": "x", "messages": [{"content": "q", "role": "user"}]},
            "messages",
            turns(("user", "q")),
            id="ultrachat",
        ),
        pytest.param(
            {"raw_conv_json": '[{"role": "user", "content": "q"}]', "input_ids": [1, 2], "loss_mask": [0, 1]},
            "messages",
            turns(("user", "q")),
            id="seta",
        ),
        pytest.param(
            {"system": "SYSTEM: Use f.", "chat": GLAIVE},
            "dialogue",
            turns(
                ("system", "Use f."),
                ("USER", "What is 1 + 1?"),
                ("ASSISTANT", '<functioncall> {"name": "add", "arguments": \'{"a": 1}\'}'),
                ("FUNCTION RESPONSE", '{"r": 2}'),
                ("ASSISTANT", "It is 2. You wrote\nUSER: twice."),
            ),
            id="Glaive",
        ),
        pytest.param(
            {"sample": "SYSTEM: Be kind.\nUSER: Hi\nASSISTANT: Hello <|endoftext|>\n"},
            "dialogue",
            turns(("SYSTEM", "Be kind."), ("USER", "Hi"), ("ASSISTANT", "Hello")),
            id="Glaive v1",
        ),
        pytest.param(CODE, "pair", turns(("user", "Write add."), ("assistant", "def add(a, b): ...")), id="OpenCode"),
        pytest.param(
            {"lang": "python", "raw_index": 1, "index": 2, "seed": "s", "problem": "p", "solution": "s"},
            "pair",
            turns(("user", "p"), ("assistant", "s")),
            id="Magicoder",
        ),
        pytest.param(
            {"instruction": "Sort it.", "input": "3 1 2", "output": "1 2 3"},
            "pair",
            turns(("user", "Sort it.\n\n3 1 2"), ("assistant", "1 2 3")),
            id="Alpaca",
        ),
        pytest.param({"question": "q", "answer": "a"}, "pair", turns(("user", "q"), ("assistant", "a")), id="gsm8k"),
        pytest.param(
            {"prompt": "q", "response": "a", "reasoning": "r"},
            "pair",
            [Turn("user", "q"), Turn("assistant", "a", "r")],
            id="response and reasoning",
        ),
        pytest.param(
            {"system": "S", "conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]},
            "conversations",
            turns(("system", "S"), ("user", "q"), ("assistant", "a")),
            id="OpenThoughts",
        ),
        pytest.param(
            {"id": "1", "conversations": [{"from": "human", "value": "q"}, {"from": "chatgpt", "value": "a"}]},
            "conversations",
            turns(("human", "q"), ("chatgpt", "a")),
            id="ShareGPT",
        ),
        pytest.param(NEBIUS, "trajectory", turns(("system", "S"), ("user", "t"), ("ai", "a")), id="Nebius"),
        pytest.param(
            {"trajectory": json.dumps(NEBIUS["trajectory"])},
            "trajectory",
            turns(("system", "S"), ("user", "t"), ("ai", "a")),
            id="Nebius, JSON in a string",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "messages",
            turns(("user", "ab")),
            id="parts",
        ),
    ],
)
def test_row_is_detected_and_read(row: dict[str, Any], shape: str, expected: list[Turn]) -> None:
    assert detect([row]).shape == shape
    assert READERS[shape](row) == expected


@pytest.mark.parametrize(
    ("shape", "row", "reason"),
    [
        ("messages", {"messages": None}, '"messages" is null'),
        ("messages", {"messages": '[{"role": "user", "con'}, "undecodable: JSON in a string is broken"),
        ("messages", {"messages": [{"role": "user"}]}, 'a turn without "role" and "content"'),
        ("messages", {"messages": [[{"role": "user"}]]}, 'a turn without "role" and "content"'),
        ("messages", {"messages": [{"role": None, "content": "x"}]}, "a role that is null"),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, '"content" is a number'),
        (
            "messages",
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
            "a tool call without a name",
        ),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "a turn with parts that are not text",
        ),
        ("conversations", {"other": 1}, 'no list of turns with "from" and "value"'),
        ("pair", {"question": "  "}, "no prompt column with text"),
        ("dialogue", {"chat": "no speaker here"}, "no speaker label in the dialogue"),
        ("dialogue", {"chat": None}, "no dialogue column with text"),
    ],
)
def test_row_of_another_shape_is_refused_with_a_reason(shape: str, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError) as error:
        READERS[shape](row)
    assert str(error.value) == reason


def test_empty_list_is_a_row_without_turns() -> None:
    assert READERS["conversations"]({"conversations": []}) == []


def test_unknown_speaker_of_a_dialogue_is_seen_as_one() -> None:
    row = {"chat": "ASKER: hi\n\n\nREPLIER: hello\n\n\nASKER: bye"}
    assert [turn.label for turn in READERS["dialogue"](row)] == ["ASKER", "REPLIER", "ASKER"]


def test_detection_says_how_sure_it_is() -> None:
    good = {"conversations": [{"from": "human", "value": "q"}]}
    detected = detect([good, good, good, {"conversations": []}])
    assert (detected.shape, detected.sure, detected.rows) == ("conversations", 0.75, 4)


def test_unknown_shape_is_described() -> None:
    with pytest.raises(UnknownShapeError) as error:
        detect([{"asker": "q", "number": 1, "turns": [{"x": 1}]}, {"asker": None, "number": 2, "turns": []}])
    text = str(error.value)
    assert "asker: null or text, number: number, turns: list or list of {x}" in text
    assert "--shape" in text
    assert "instruction" in text
