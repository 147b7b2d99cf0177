"""Prompts as prep writes them, generate as a real process, and what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.files import content_hash
from pipeline.progress import parse_line
from pipeline.protocol import Progress, Result
from tests.generate.stub import NORMAL
from tests.tiny import ROOT

SHORT = '{"name": "short", "concurrency": 16, "max_new_tokens": 64, "temperature": 0.7, "top_p": 0.9, "top_k": 40}'
LONG = '{"name": "long", "concurrency": 4, "max_new_tokens": 256}'


def write_prompts(
    folder: Path, dataset: str, rows: Iterable[tuple[str, list[int]]], *, partition: str = "short"
) -> Path:
    """Rows of (row id, prompt ids)."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "records.jsonl").open("w") as file:
        for row, ids in rows:
            record = {
                "dataset": dataset,
                "row": row,
                "hash": content_hash(ids)[:12],
                "group": row,
                "heldout": False,
                "partition": partition,
                "max_new_tokens": None,
                "prompt_ids": ids,
                "messages": [{"role": "user", "content": "x"}],
            }
            file.write(json.dumps(record) + "\n")
    (folder / "manifest.json").write_text("{}")
    return folder


def rows(count: int, *, kind: int = NORMAL, start: int = 0) -> list[tuple[str, list[int]]]:
    return [(str(number), [kind, 3 + number, 5]) for number in range(start, start + count)]


def command(
    url: str, out: Path, *prompts: Path, partitions: Iterable[str] = (SHORT,), more: Iterable[str] = ()
) -> list[str]:
    argv = [sys.executable, "-m", "pipeline.generate", "--server", url, "--out", str(out)]
    for folder in prompts:
        argv += ["--prompts", str(folder)]
    for partition in partitions:
        argv += ["--partition", partition]
    return [*argv, "--stop-id", "2", *more]


def start(argv: list[str], progress: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, "DRAFTDECK_PROGRESS": str(progress)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(argv: list[str], progress: Path, *, within_s: float = 60) -> tuple[int, str]:
    """Run to the end: exit code and output."""
    with start(argv, progress) as process:
        try:
            output = process.communicate(timeout=within_s)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, output


def answers(out: Path) -> dict[str, dict[str, Any]]:
    """All answers by key. Asserts that every line is whole and no key is there twice."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(out.glob("*.jsonl")):
        if path.name == "errors.jsonl":
            continue
        text = path.read_text()
        assert text.endswith("\n")
        for line in text.splitlines():
            answer = json.loads(line)
            assert answer["key"] not in found, f"{answer['key']} is there twice"
            assert f"{answer['dataset']}.jsonl" == path.name
            found[answer["key"]] = answer
    return found


def count_lines(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*.jsonl"))


def keys(*folders: Path) -> set[str]:
    records = [json.loads(line) for folder in folders for line in (folder / "records.jsonl").read_text().splitlines()]
    return {f"{record['dataset']}/{record['row']}/{record['hash']}" for record in records}


def set_aside(out: Path) -> list[dict[str, Any]]:
    path = out / "errors.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def reported(progress: Path) -> tuple[list[Progress], Result | None]:
    """Everything in a progress file."""
    lines = [line for text in progress.read_bytes().splitlines() if (line := parse_line(text)) is not None]
    results = [line.result for line in lines if line.result is not None]
    return [line.progress for line in lines if line.progress is not None], results[-1] if results else None


def seen_datasets(bodies: list[dict[str, Any]]) -> Counter[str]:
    """Datasets of what a stub saw, by the rid that generate sends."""
    return Counter(body["rid"].split("/")[0] for body in bodies)
