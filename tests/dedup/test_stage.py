"""Dedup of real preps, in this process and as a process of its own that is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import duplicates
from pipeline.dedup import __main__ as command
from pipeline.dedup.stage import Settings, run
from pipeline.files import complete_lines
from pipeline.progress import PROGRESS_VARIABLE, parse_line
from pipeline.protocol import Result
from tests.prep.small import make_tokenizer, run_prep, write_lines
from tests.tiny import ROOT

HEAD = "Look at all of these: " + " ".join(f"item {number}" for number in range(40))


def prompt(text: str, answer: str = "Yes.") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}


class Ground:
    """Preps of A1 (answers), B1 and B2 (prompts), in the order of the config."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.target = make_tokenizer(folder / "target")

    def prep(self, dataset: str, rows: Sequence[dict[str, Any]], **settings: Any) -> list[dict[str, Any]]:
        given: dict[str, Any] = {"kind": "answers" if dataset.startswith("A") else "prompts", "heldout_share": 0.0}
        return run_prep(
            self.patch, self.folder, write_lines(self.folder / f"{dataset}.jsonl", list(rows)), self.target,
            dataset=dataset, out=self.folder / dataset, **(given | settings),
        ).records  # fmt: skip

    def settings(self, **changes: Any) -> Settings:
        folders = sorted(path for path in self.folder.iterdir() if path.name in ("A1", "A2", "B1", "B2", "B3"))
        settings = Settings(
            samples=tuple(path for path in folders if path.name.startswith("A")),
            prompts=tuple(path for path in folders if path.name.startswith("B")),
            out=self.folder / "dedup",
        )
        return replace(settings, **changes)

    def dedup(self, **changes: Any) -> tuple[int, Result]:
        progress = self.folder / "dedup-progress.jsonl"
        progress.unlink(missing_ok=True)
        self.patch.setenv(PROGRESS_VARIABLE, str(progress))
        code = run(self.settings(**changes))
        result = [line for data in complete_lines(progress) if (line := parse_line(data))][-1].result
        assert result is not None
        return code, result

    def dropped(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in complete_lines(self.folder / "dedup" / "dropped.jsonl")]

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "dedup" / "manifest.json").read_bytes())
        return found


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(tmp_path, monkeypatch)


def key(record: dict[str, Any]) -> str:
    return f"{record['dataset']}/{record['row']}/{record['hash']}"


def test_duplicates_over_all_sets_are_counted_and_named(ground: Ground) -> None:
    samples = ground.prep("A1", [prompt("What is one?"), prompt("What is two?")])
    first = ground.prep("B1", [prompt("What is two?"), prompt("What is three?"), prompt(f"{HEAD}: a list of things.")])
    second = ground.prep("B2", [prompt(f"{HEAD}: a set of things!"), prompt("What is three?"), prompt("What is four?")])
    code, result = ground.dedup()
    assert code == 0
    assert ground.dropped() == [
        {"key": key(first[0]), "dataset": "B1", "reason": "duplicate", "of": key(samples[1]), "similarity": 1.0},
        {**ground.dropped()[1], "key": key(second[0]), "reason": "near duplicate", "of": key(first[2])},
        {"key": key(second[1]), "dataset": "B2", "reason": "duplicate", "of": key(first[1]), "similarity": 1.0},
    ]
    assert 0.8 <= ground.dropped()[1]["similarity"] < 1
    manifest = ground.manifest()
    assert (manifest["read"], manifest["kept"], manifest["dropped"]) == (8, 5, {"duplicate": 2, "near duplicate": 1})
    counts = result.datasets
    assert {name: (count.read, count.kept) for name, count in counts.items()} == {
        "A1": (2, 2),
        "B1": (3, 2),
        "B2": (3, 1),
    }
    assert counts["B1"].tokens == sum(len(record["prompt_ids"]) for record in first[1:])
    assert counts["A1"].tokens == sum(len(record["input_ids"]) for record in samples)
    examples = manifest["datasets"]["B2"]["examples"]
    assert examples["near duplicate"] == [{"key": key(second[0]), "of": key(first[2])}]
    assert result.records == 5 and "5 of 8 kept; dropped: duplicate 2, near duplicate 1" in result.message


def test_the_threshold_and_the_shingle_decide(ground: Ground) -> None:
    ground.prep("B1", [prompt(f"{HEAD}: a list of things.")])
    ground.prep("B2", [prompt(f"{HEAD}: a set of things!"), prompt("What is four?")])
    ground.dedup(threshold=0.99)
    assert not ground.dropped()
    ground.dedup(threshold=0.99, shingle=1)
    assert not ground.dropped() and len(list(ground.folder.glob("dedup.stale-*"))) == 1
    ground.dedup()
    assert len(ground.dropped()) == 1


def topic(number: int) -> str:
    """A text that shares nothing with others."""
    return " ".join(f"topic{number}word{at}" for at in range(12))


def test_nothing_held_out_is_trained_on(ground: Ground) -> None:
    """The same texts under other groups fall on both sides of the split."""
    for name, mark in (("B1", ""), ("B2", "!")):
        rows = [{**prompt(topic(at) + mark), "repo": f"{name} {at}"} for at in range(60)]
        ground.prep(name, rows, group="repo", heldout_share=0.4)
    ground.dedup()
    reasons = {row["key"]: row["reason"] for row in ground.dropped()}
    assert len(reasons) == 60
    assert set(reasons.values()) == {"near duplicate of a held-out row", "near duplicate"}
    lines = [line for name in ("B1", "B2") for line in complete_lines(ground.folder / name / "records.jsonl")]
    kept = [record for record in map(json.loads, lines) if key(record) not in reasons]
    aside, trained = (
        {record["messages"][0]["content"].strip("!") for record in kept if record["heldout"] is side}
        for side in (True, False)
    )
    assert aside and trained and not aside & trained


def test_a_group_on_both_sides_is_refused_before_anything_is_generated(ground: Ground) -> None:
    ground.prep("B1", [{**prompt("What is one?"), "repo": "x"}], group="repo", heldout_share=0.99)
    ground.prep("B2", [{**prompt("What is two?"), "repo": "x"}], group="repo", heldout_share=0.0)
    code, result = ground.dedup()
    assert code == 3 and "group x is on the other side of the split in B1" in result.message


def test_a_set_of_which_nothing_is_left_is_named(ground: Ground) -> None:
    ground.prep("A1", [prompt("What is one?"), prompt("What is two?")])
    ground.prep("B1", [prompt("What is one?")])
    code, result = ground.dedup()
    assert (code, result.records) == (3, 0)
    assert result.message == "B1: 0 of 1 rows left: duplicate took 1"
    assert result.datasets["B1"].dropped == {"duplicate": 1}
    assert not (ground.folder / "dedup").exists() or not list((ground.folder / "dedup").iterdir())


def test_a_waived_prep_is_absent_and_others_records_are_not_taken_for_these(ground: Ground) -> None:
    ground.prep("A1", [prompt("What is one?"), prompt("What is two?")])
    ground.prep("B1", [prompt("What is one?"), prompt("What is three?")])
    code, result = ground.dedup(prompts=(ground.folder / "B1", ground.folder / "B9"))
    assert code == 0 and result.datasets.keys() == {"A1", "B1"}
    known = duplicates.read(ground.folder / "dedup")
    assert known is not None and list(known.reasons.values()) == ["duplicate"]
    known.check("B1", json.loads((ground.folder / "B1" / "manifest.json").read_bytes())["content"])
    with pytest.raises(duplicates.DuplicatesError, match="made from other records of B1; run dedup again"):
        known.check("B1", "0" * 16)
    with pytest.raises(duplicates.DuplicatesError, match="made without B9; run dedup again"):
        known.check("B9", "0" * 16)
    code, result = ground.dedup(samples=(), prompts=(ground.folder / "B9",))
    assert code == 3 and "no prep has finished" in result.message


def test_done_is_done_and_a_prep_made_anew_makes_it_anew(ground: Ground) -> None:
    ground.prep("B1", [prompt("What is one?"), prompt("What is two?")])
    ground.prep("B2", [prompt("What is two?"), prompt("What is three?")])
    ground.dedup()
    assert ground.dedup()[1].message.startswith("already done: 3 of 4 kept")
    ground.prep("B1", [prompt("What is one?"), prompt("What is four?")])
    assert ground.dedup()[1].message.startswith("4 of 4 kept")
    (ground.folder / "B2" / "records.jsonl").write_bytes(b"")
    code, result = ground.dedup()
    assert code == 3 and "is not the file its manifest speaks of; run its prep again" in result.message


def test_records_without_their_text_are_named(ground: Ground) -> None:
    ground.prep("B1", [prompt("What is one?")])
    path = ground.folder / "B1" / "records.jsonl"
    text = path.read_text().replace('"messages"', '"massages"')
    path.write_text(text)
    code, result = ground.dedup()
    assert code == 3 and f"{path} line 1: Object missing required field `messages`" in result.message


def test_killed_at_any_moment_it_writes_the_same(ground: Ground) -> None:
    drawn = random.Random(4)
    for name in ("B1", "B2", "B3"):
        texts = [f"{topic(drawn.randrange(300))} {drawn.choice('.!?')}" for _ in range(150)]
        ground.prep(name, [prompt(text) for text in texts])
    folders = [word for name in ("B1", "B2", "B3") for word in ("--prompts", str(ground.folder / name))]
    out = ground.folder / "killed"
    argv = [sys.executable, "-m", "pipeline.dedup", *folders, "--shingle", "1", "--threshold", "0.9", "--out", str(out)]
    whole = [*argv[:-1], str(ground.folder / "whole")]
    began = time.monotonic()
    subprocess.run(whole, cwd=ROOT, check=True, capture_output=True)
    took = time.monotonic() - began
    expected = {path.name: path.read_bytes() for path in (ground.folder / "whole").iterdir()}
    assert expected.keys() == {"dropped.jsonl", "manifest.json"} and expected["dropped.jsonl"]
    for number in range(8):
        if number % 4 == 3:
            shutil.rmtree(out, ignore_errors=True)
        with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            time.sleep(took * drawn.random())  # any moment, the last ones too
            os.kill(process.pid, signal.SIGKILL)
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "nothing to compare"),
        (["--prompts", "p", "--threshold", "0"], "alike"),
        (["--prompts", "p", "--shingle", "0"], "0"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], extra: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["--out", "o", *extra])
    assert end.value.code == 2 and words in capsys.readouterr().err
