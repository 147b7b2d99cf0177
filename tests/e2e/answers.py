"""What a finished run must have on disk: every prompt answered exactly once, and all of it in the training set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def key(row: dict[str, Any]) -> str:
    return f"{row['dataset']}/{row['row']}/{row['hash']}"


def prompt_keys(workdir: Path) -> set[str]:
    return {key(row) for path in sorted(workdir.glob("data/prompts/*/records.jsonl")) for row in rows(path)}


def answered(workdir: Path) -> Counter[str]:
    """How often each prompt was answered."""
    return Counter(row["key"] for path in sorted(workdir.glob("data/responses/*.jsonl")) for row in rows(path))


def check_run(workdir: Path, prompts_a_dataset: int) -> None:
    """Assert that the run in ``workdir`` is whole."""
    prompts = prompt_keys(workdir)
    assert len(prompts) == 8 * prompts_a_dataset
    answers = answered(workdir)
    assert set(answers) == prompts
    assert set(answers.values()) == {1}, [name for name, times in answers.items() if times != 1]
    samples = {key(row) for path in workdir.glob("data/samples/*/records.jsonl") for row in rows(path)}
    assert len(samples) == 2 * prompts_a_dataset
    trained = rows(workdir / "data/train/train.jsonl") + rows(workdir / "data/train/heldout.jsonl")
    assert {row["key"] for row in trained} <= prompts | samples
    assert samples <= {row["key"] for row in trained}
    for row in trained:
        assert len(row["input_ids"]) == len(row["loss_mask"])
        assert 0 < sum(row["loss_mask"]) < len(row["loss_mask"])
