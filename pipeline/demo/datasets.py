"""``python -m pipeline.demo.datasets``: ten small datasets in ten public schemas, with the pitfalls those have.

The text comes from what is installed; the schemas, file formats and pitfalls are those of the public sets named with
each maker. Every set has at least the wanted number of usable rows, and some that no pipeline can use.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from pipeline.demo.texts import Item, items
from pipeline.files import write_atomically

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


@dataclass(frozen=True)
class Maker:
    """How one dataset is made: its rows of questions, its speakers' names, its file."""

    name: str
    public: str  # the set whose schema this is
    names: Names
    rows: Callable[[list[Item], Names], list[Row]]
    write: Callable[[Path, list[Row]], None]


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
    """``from`` is user and assistant, not human and gpt; the system prompt is a column."""
    rows: list[Row] = []
    for item in questions:
        answer = (
            f"<|begin_of_thought|>\n{item.question}\n<|end_of_thought|>\n\n"
            f"<|begin_of_solution|>\n{item.answer}\n<|end_of_solution|>"
        )
        turns = _turns([(names.user, item.question), (names.assistant, answer)], "from", "value")
        rows.append({"system": SYSTEM, "conversations": turns})
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


def _jsonl(folder: Path, rows: list[Row]) -> None:
    write_atomically(folder / "train.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _jsonl_with_a_torn_line(folder: Path, rows: list[Row]) -> None:
    lines = [msgspec.json.encode(row) + b"\n" for row in rows]
    lines.insert(len(lines) // 2, lines[0][:40] + b"\n")
    write_atomically(folder / "train.jsonl", b"".join(lines))


def _array(folder: Path, rows: list[Row]) -> None:
    write_atomically(folder / "data.json", json.dumps(rows, ensure_ascii=False, indent=1).encode())


def _parquet(folder: Path, rows: list[Row], shards: int = 1, split: str = "train") -> None:
    import pyarrow as pa
    from pyarrow import parquet

    size = -(-len(rows) // shards)
    schema = pa.Table.from_pylist(rows).schema
    for shard in range(shards):
        sink = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pylist(rows[shard * size : (shard + 1) * size], schema=schema), sink)
        name = f"{split}-{shard:05}-of-{shards:05}.parquet"
        write_atomically(folder / name, sink.getvalue().to_pybytes())


def _two_shards(folder: Path, rows: list[Row]) -> None:
    _parquet(folder, rows, shards=2)


def _train_sft(folder: Path, rows: list[Row]) -> None:
    """The public set has no split "train"."""
    _parquet(folder, rows, split="train_sft")
    _parquet(folder, rows[:1], split="test_sft")


MAKERS: Final = (
    Maker("A1", "DeepSWE-Agent-Kimi-K2-Trajectories", Names("user", "assistant"), agent_messages, _jsonl),
    Maker("A2", "KimiK2.5-2000x", Names("user", "assistant"), thinking_messages, _jsonl),
    Maker("B1", "glaive-function-calling-v2", Names("USER", "ASSISTANT"), one_string, _array),
    Maker("B2", "OpenCodeInstruct", Names("user", "assistant"), code_instructions, _parquet),
    Maker("B3", "Magicoder-OSS-Instruct-75K", Names("user", "assistant"), problems, _jsonl_with_a_torn_line),
    Maker("B4", "ultrachat_200k", Names("user", "assistant"), chats, _train_sft),
    Maker("B5", "OpenThoughts-114k", Names("user", "assistant"), thoughts, _parquet),
    Maker("B6", "ShareGPT_Vicuna_unfiltered", Names("human", "gpt"), shared_chats, _array),
    Maker("B7", "SWE-smith-trajectories", Names("user", "assistant"), json_strings, _jsonl),
    Maker("B8", "SWE-agent-trajectories", Names("user", "ai"), trajectories, _two_shards),
)


def make(maker: Maker, folder: Path, size: int, *, big: int = 0, broken: bool = False) -> int:
    """Write one dataset with ``size`` usable rows, or ``big`` where that is more; the number of rows written."""
    place = MAKERS.index(maker)
    questions = items(len(MAKERS), place, size)
    if big > size:
        questions += [_sum(number) for number in range(size, big)]
    rows = maker.rows(questions, maker.names.broken() if broken else maker.names)
    maker.write(folder, rows)
    return len(rows)


def _sum(number: int) -> Item:
    """A question about numbers: there are as many as it takes, no two the same."""
    form = (
        "What is {a} plus {b}? Answer with the number.",
        "Write one line of Python that adds {a} and {b}.",
        "What is the next number after {b}, and the one {a} further?",
        "Write a Python function that adds {a} to its argument, and call it with {b}.",
    )[number % 4]
    return Item(form.format(a=number % 97, b=number), str(number % 97 + number))


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.demo.datasets", description=__doc__)
    names = [maker.name for maker in MAKERS]
    parser.add_argument("--out", required=True, type=Path, metavar="D", help="gets a folder a dataset")
    parser.add_argument(
        "--size", type=int, default=20, metavar="N", help="usable rows a dataset (default: %(default)s)"
    )
    parser.add_argument("--big", type=int, default=50_000, metavar="N", help="rows of B2 (default: %(default)s)")
    parser.add_argument("--only", choices=names, action="append", metavar="NAME", help="make this one alone")
    parser.add_argument(
        "--break", dest="broken", choices=names, action="append", default=[], metavar="NAME",
        help="give this dataset's speakers (or columns) names that nobody knows",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the datasets."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.size < 2:
        parser.error(f"--size {arguments.size} is too few; 2 or more")
    for maker in MAKERS:
        if arguments.only and maker.name not in arguments.only:
            continue
        big = arguments.big if maker.name == "B2" else 0
        try:
            count = make(
                maker, arguments.out / maker.name, arguments.size, big=big, broken=maker.name in arguments.broken
            )
        except ValueError as error:
            parser.error(f"--size {arguments.size}: {error}")
        print(f"{maker.name}: {count:,} rows as in {maker.public}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
