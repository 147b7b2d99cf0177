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
from typing import Final

import msgspec

from pipeline.demo import schemas
from pipeline.demo.schemas import Names, Row
from pipeline.demo.texts import Item, items
from pipeline.files import write_atomically


@dataclass(frozen=True)
class Maker:
    """How one dataset is made: its rows of questions, its speakers' names, its file."""

    name: str
    public: str  # the set whose schema this is
    names: Names
    rows: Callable[[list[Item], Names], list[Row]]
    write: Callable[[Path, list[Row]], None]


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
    Maker("A1", "DeepSWE-Agent-Kimi-K2-Trajectories", Names("user", "assistant"), schemas.agent_messages, _jsonl),
    Maker("A2", "KimiK2.5-2000x", Names("user", "assistant"), schemas.thinking_messages, _jsonl),
    Maker("B1", "glaive-function-calling-v2", Names("USER", "ASSISTANT"), schemas.one_string, _array),
    Maker("B2", "OpenCodeInstruct", Names("user", "assistant"), schemas.code_instructions, _parquet),
    Maker("B3", "Magicoder-OSS-Instruct-75K", Names("user", "assistant"), schemas.problems, _jsonl_with_a_torn_line),
    Maker("B4", "ultrachat_200k", Names("user", "assistant"), schemas.chats, _train_sft),
    Maker("B5", "OpenThoughts-114k", Names("user", "assistant"), schemas.thoughts, _parquet),
    Maker("B6", "ShareGPT_Vicuna_unfiltered", Names("human", "gpt"), schemas.shared_chats, _array),
    Maker("B7", "SWE-smith-trajectories", Names("user", "assistant"), schemas.json_strings, _jsonl),
    Maker("B8", "SWE-agent-trajectories", Names("user", "ai"), schemas.trajectories, _two_shards),
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
