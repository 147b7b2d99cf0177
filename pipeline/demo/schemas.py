"""The rows of the demo's datasets: one small function a public schema, with the pitfalls of that schema.

Each makes as many usable rows as there are questions, and some that no pipeline can use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.demo.texts import Item

Row = dict[str, Any]

UNKNOWN: Final = {"user": "asker", "assistant": "replier"}
"""What ``--break`` calls the two speakers."""

SYSTEM: Final = "You are a helpful assistant. Answer briefly."


@dataclass(frozen=True)
class Names:
    """What a dataset calls its speakers."""

    user: str
    assistant: str

    def broken(self) -> Names:
        """The same with labels that nobody knows, in the same writing."""
        upper = self.user.isupper()
        return Names(*(label.upper() if upper else label for label in UNKNOWN.values()))


def agent_messages(questions: list[Item], names: Names) -> list[Row]:
    """Tool output comes as the user's turn, tool calls are tags in the text."""
    rows: list[Row] = []
    for item in questions:
        call = "I look it up. <function=search><parameter=query>notes</parameter></function>"
        turns = [
            ("system", SYSTEM),
            (names.user, f"<question>{item.question}</question>"),
            (names.assistant, call),
            (names.user, f"OBSERVATION: {item.answer}"),
            (names.assistant, item.answer),
        ]
        rows.append({"messages": _turns(turns, "role", "content")})
    rows.append({"messages": rows[0]["messages"][:2]})  # nobody answered
    rows.append(rows[1])  # twice the same
    return rows


def thinking_messages(questions: list[Item], names: Names) -> list[Row]:
    """The answer holds its thinking in tags; one content is null."""
    rows: list[Row] = []
    for item in questions:
        answer = f"<think>The user asks: {item.question}</think>{item.answer}"
        rows.append({"messages": _turns([(names.user, item.question), (names.assistant, answer)], "role", "content")})
    rows.append({"messages": _turns([(names.user, None), (names.assistant, "Yes.")], "role", "content")})
    return rows


def one_string(questions: list[Item], names: Names) -> list[Row]:
    """All turns in one string, with JSON in single quotes, end tokens written out, and a label inside a text."""
    rows: list[Row] = []
    for number, item in enumerate(questions):
        function = f"{{'name': 'lookup', 'arguments': '{{\"key\": {number}}}'}}"
        question = (
            f'{item.question} (I was told to write "{names.user}: hello" first.)' if number % 7 == 3 else item.question
        )
        chat = (
            f"{names.user}: Look up number {number}.\n\n\n"
            f"{names.assistant}: <functioncall> {function} <|endoftext|>\n\n\n"
            f'FUNCTION RESPONSE: {{"found": true}}\n\n\n'
            f"{names.assistant}: I found it. <|endoftext|>\n\n\n"
            f"{names.user}: {question}\n\n\n"
            f"{names.assistant}: {item.answer} <|endoftext|>"
        )
        rows.append({"system": f"SYSTEM: {SYSTEM}", "chat": chat})
    rows.append({"system": "SYSTEM: ", "chat": ""})
    return rows


def code_instructions(questions: list[Item], names: Names) -> list[Row]:
    """JSON in strings and numbers as strings; some inputs are empty."""
    prompt, answer = _columns(names, "input", "output")
    rows: list[Row] = []
    for number, item in enumerate(questions):
        rows.append(
            {
                "id": f"{number:08x}",
                prompt: item.question,
                answer: f"# {item.answer}",
                "domain": "generic",
                "generation_algorithm": "self-instruct",
                "llm_judgement": '{"requirement_conformance": {"score": 5}}',
                "unit_tests": '["assert True"]',
                "tests_execution_status": '["pass"]',
                "average_test_score": "1.0",
            }
        )
        if number % 100 == 7:
            rows.append({**rows[-1], "id": f"{number:08x}-empty", prompt: ""})
    return rows


def problems(questions: list[Item], names: Names) -> list[Row]:
    """Indices that are no ids of the text, one problem that is null, one row twice."""
    prompt, answer = _columns(names, "problem", "solution")
    rows: list[Row] = []
    for number, item in enumerate(questions):
        rows.append(
            {
                "lang": "python",
                "raw_index": 1000 + number,
                "index": 5000 + number,
                "seed": "import this",
                prompt: item.question,
                answer: item.answer,
            }
        )
    rows.append({**rows[0], "raw_index": 999, prompt: None})
    rows.append({**rows[0], "raw_index": 998})
    return rows


def chats(questions: list[Item], names: Names) -> list[Row]:
    """The first prompt stands in a column of its own too; several turns; one chat without any."""
    rows: list[Row] = []
    for number, item in enumerate(questions):
        turns = [(names.user, item.question), (names.assistant, item.answer)]
        if number % 3 == 0:
            turns += [(names.user, "Please say that in other words."), (names.assistant, item.answer)]
        messages = _turns(turns, "role", "content")
        rows.append({"prompt": item.question, "prompt_id": f"{number:064x}", "messages": messages})
    rows.append({"prompt": "", "prompt_id": "0" * 63 + "x", "messages": []})
    return rows


def thoughts(questions: list[Item], names: Names) -> list[Row]:
    """``from`` is user and assistant, not human and gpt; the system prompt is a column; a null, and a row twice."""
    rows: list[Row] = []
    for item in questions:
        answer = (
            f"<|begin_of_thought|>\n{item.question}\n<|end_of_thought|>\n\n"
            f"<|begin_of_solution|>\n{item.answer}\n<|end_of_solution|>"
        )
        turns = _turns([(names.user, item.question), (names.assistant, answer)], "from", "value")
        rows.append({"system": SYSTEM, "conversations": turns})
    rows.append(
        {"system": SYSTEM, "conversations": _turns([(names.user, None), (names.assistant, "…")], "from", "value")}
    )
    rows.append(rows[0])
    return rows


def shared_chats(questions: list[Item], names: Names) -> list[Row]:
    """Some chats begin with the model's turn, some are empty, some name another model."""
    rows: list[Row] = []
    for number, item in enumerate(questions):
        model = "chatgpt" if number % 5 == 2 and names.assistant == "gpt" else names.assistant
        turns = _turns([(names.user, item.question), (model, item.answer)], "from", "value")
        rows.append({"id": f"q{number}_0", "conversations": turns})
    rows.append({"id": "cut_1", "conversations": _turns([(names.assistant, "… as I said.")], "from", "value")})
    rows.append({"id": "cut_2", "conversations": [*rows[0]["conversations"][1:], *rows[1]["conversations"]]})
    rows.append({"id": "void_0", "conversations": []})
    return rows


def json_strings(questions: list[Item], names: Names) -> list[Row]:
    """The messages are JSON in a string; one string is cut off."""
    rows: list[Row] = []
    for number, item in enumerate(questions):
        turns = _turns(
            [("system", SYSTEM), (names.user, item.question), (names.assistant, item.answer)], "role", "content"
        )
        rows.append({"messages": json.dumps(turns), "instance_id": f"word__{number}", "resolved": True})
    rows.append({"messages": rows[0]["messages"][:30], "instance_id": "word__cut", "resolved": False})
    return rows


def trajectories(questions: list[Item], names: Names) -> list[Row]:
    """Turns with null text and the text elsewhere; the model is called ai; long."""

    def turn(role: str, text: str | None, system: str | None = None) -> Row:
        return {"role": role, "text": text, "system_prompt": system, "mask": False, "cutoff_date": "01.01.2023"}

    rows: list[Row] = []
    for number, item in enumerate(questions):
        trajectory = [
            turn("system", None, SYSTEM),
            turn(names.user, f"We are solving this: {item.question}\n(Current directory: /repo)"),
            turn(names.assistant, "Let us list the files.\n```\nls -F\n```"),
            turn(names.user, "README.md\nsetup.py\nsrc/\n(Current directory: /repo)"),
            turn(names.assistant, "The README should say it.\n```\ncat README.md\n```"),
            turn(names.user, f"{item.answer}\n(Current directory: /repo)\nNow answer in one sentence: {item.question}"),
            turn(names.assistant, item.answer),
        ]
        rows.append(
            {
                "instance_id": f"words__questions-{number // 2}",  # two attempts at each
                "model_name": "swe-agent-llama-8b",
                "target": number % 2 == 0,
                "trajectory": trajectory,
                "exit_status": "submitted",
                "generated_patch": "diff --git a/README.md b/README.md\n",
                "eval_logs": "",
            }
        )
    rows.append({**rows[0], "instance_id": "words__questions-void", "trajectory": [turn(names.user, None)]})
    return rows


def _turns(turns: Sequence[tuple[str, str | None]], who: str, what: str) -> list[Row]:
    return [{who: label, what: text} for label, text in turns]


def _columns(names: Names, prompt: str, answer: str) -> tuple[str, str]:
    """A set of columns has no labels to break, so breaking it renames its columns."""
    return (names.user, names.assistant) if names.user in UNKNOWN.values() else (prompt, answer)
