"""A row of each public schema, with its pitfalls; the values are invented."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.prep.detect import UnknownShapeError, detect
from pipeline.prep.shapes import READERS, RowError, Turn
from pipeline.prep.turns import Call, tools_of

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
CALL = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls"}'}}
TOOL = {"type": "function", "function": {"name": "run", "description": "Runs.", "parameters": {"type": "object"}}}
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
            {"trajectory": [{"messages": NEBIUS["trajectory"]}]},
            "trajectory",
            turns(("system", "S"), ("user", "t"), ("ai", "a")),
            id="nested once more",
        ),
        pytest.param(
            {"trajectory": [[turn] for turn in NEBIUS["trajectory"]]},
            "trajectory",
            turns(("system", "S"), ("user", "t"), ("ai", "a")),
            id="every turn in a list of its own",
        ),
        pytest.param(
            {"trajectory": [{"turn": turn} for turn in NEBIUS["trajectory"]]},
            "trajectory",
            turns(("system", "S"), ("user", "t"), ("ai", "a")),
            id="every turn in an object of its own",
        ),
        pytest.param(
            {"data": {"conversations": [{"from": "human", "value": "q"}]}},
            "conversations",
            turns(("human", "q")),
            id="in an object",
        ),
        pytest.param(
            {"conversations": json.dumps({"conversations": [{"from": "human", "value": "q"}]})},
            "conversations",
            turns(("human", "q")),
            id="in an object in a string",
        ),
        pytest.param(
            {"conversations": [json.dumps({"from": "human", "value": "q"}), json.dumps({"from": "gpt", "value": "a"})]},
            "conversations",
            turns(("human", "q"), ("gpt", "a")),
            id="every turn in a string",
        ),
        pytest.param(
            {"prompt": json.dumps([{"role": "user", "content": "q"}]), "domain": "x"},
            "messages",
            turns(("user", "q")),
            id="a prompt column of messages",
        ),
        pytest.param(
            {
                "trajectory": [
                    {"role": "user", "content": [{"type": "text", "text": "q"}], "tool_calls": None},
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                    {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "run"},
                ],
                "tools": [TOOL],
            },
            "messages",
            [
                Turn("user", "q"),
                Turn("assistant", None, calls=(Call("c1", "run", '{"cmd": "ls"}'),)),
                Turn("tool", "r", call_id="c1", name="run"),
            ],
            id="OpenHands, structured tool calls",
        ),
        pytest.param(
            {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "tool_calls": json.dumps([CALL])},
                    {
                        "role": "assistant",
                        "content": "",
                        "function_call": {"name": "run", "arguments": {"a": None, "b": 1}},
                    },
                ]
            },
            "messages",
            [
                Turn("user", "q"),
                Turn("assistant", None, calls=(Call("c1", "run", '{"cmd": "ls"}'),)),
                Turn("assistant", "", calls=(Call("", "run", '{"b": 1}'),)),
            ],
            id="calls in a string, and the older kind",
        ),
        pytest.param(
            {"id": 1, "query": "q", "answers": "[]", "tools": json.dumps([TOOL["function"]])},
            "pair",
            turns(("user", "q")),
            id="xlam",
        ),
        pytest.param(
            {
                "problem": "q",
                "deepseek_reasoning": "r",
                "deepseek_solution": "a",
                "test_cases": None,
                "starter_code": "",
            },
            "pair",
            [Turn("user", "q"), Turn("assistant", "a", "r")],
            id="OpenThoughts, metadata",
        ),
        pytest.param(
            {"prompt": "q", "text": "NOTE: read this", "response": "a"},
            "pair",
            turns(("user", "q"), ("assistant", "a")),
            id="a text that begins like a dialogue",
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
        ("messages", {"messages": [{"role": "a", "tool_calls": "[{"}]}, "tool calls that are broken JSON"),
        ("messages", {"messages": [{"role": "a", "tool_calls": 3}]}, "tool calls that are a number"),
        (
            "messages",
            {"messages": [{"role": "a", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]},
            "tool call arguments that are a number",
        ),
        ("pair", {"question": "  "}, "no prompt column with text"),
        ("pair", {"input": "-", "output": "a"}, 'a prompt column that says nothing, like "-"'),
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


def test_detection_says_how_many_roles_it_knows() -> None:
    good = {"messages": [{"role": "user", "content": "q"}]}
    detected = detect([good, {"messages": [{"role": "asker", "content": "q"}]}, good, {"messages": None}])
    assert (detected.sure, round(detected.known, 2)) == (0.75, 0.67)
    assert detected.words() == "messages, 75% of the first 4 rows read so, 67% of them with known roles only"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ()),
        ([], ()),
        ([TOOL], (TOOL,)),
        ([TOOL["function"]], (TOOL,)),
        (json.dumps([TOOL]), (TOOL,)),
        ([json.dumps(TOOL)], (TOOL,)),
        ([{**TOOL, "strict": None}], (TOOL,)),
        ("run", "tools that are broken JSON"),
        (3, "tools that are a number"),
        ([{"description": "x"}], "a tool without a name"),
    ],
)
def test_declared_tools(given: Any, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(RowError, match=expected):
            tools_of({"tools": given})
    else:
        assert tools_of({"tools": given}) == expected


def test_unknown_shape_is_described() -> None:
    with pytest.raises(UnknownShapeError) as error:
        detect([{"asker": "q", "number": 1, "turns": [{"x": 1}]}, {"asker": None, "number": 2, "turns": []}])
    text = str(error.value)
    assert "asker: null or text, number: number, turns: list or list of {x}" in text
    assert "--shape" in text
    assert "instruction" in text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"turns": [{"role": "asker", "utterance": "q"}, {"role": "replier", "utterance": "a"}]},
            [
                "turns: list of {role, utterance}",
                'roles seen: "asker" 2, "replier" 2',
                'nearest: messages, turns lack "content"',
            ],
        ),
        ({"log": {"dialog": [[{"speaker": "A\x1b[2J"}]]}}, ['roles seen: "A [2J" 2', "nearest: "]),
        ({"prompts": "q"}, ['nearest: pair, "prompts" is like "prompt"']),
        ({"a": 1.5, "b": {"c": []}}, ["a: number, b: object", "nearest: pair, no column of a known name"]),
        ({"messages": 3}, ['nearest: messages, turns lack "role" and "content"']),
    ],
)
def test_unknown_shape_names_roles_and_the_nearest(row: Any, words: list[str]) -> None:
    with pytest.raises(UnknownShapeError) as error:
        detect([row, row])
    assert str(error.value).isprintable()
    for word in words:
        assert word in str(error.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("space", ["\n", " \n", "\n\r"])
def test_a_long_run_of_blank_lines_is_read_once(space: str) -> None:
    long = space * 200_000
    assert READERS["dialogue"]({"text": f"USER: a{long}b"}) == turns(("USER", f"a{long}b"))
    assert READERS["dialogue"]({"text": f"{long}USER: a{long}ASSISTANT: b"}) == turns(("USER", "a"), ("ASSISTANT", "b"))
