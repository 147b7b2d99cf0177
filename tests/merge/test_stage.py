"""A merge of real preps and answers as generate writes them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import duplicates
from pipeline.dedup.stage import Settings as DedupSettings
from pipeline.dedup.stage import run as run_dedup
from pipeline.files import complete_lines, content_hash
from pipeline.merge import __main__ as command
from pipeline.merge.stage import Settings, run
from pipeline.progress import PROGRESS_VARIABLE, parse_line
from pipeline.protocol import Result
from tests.prep.small import make_tokenizer, run_prep, write_lines
from tests.tiny import ROOT

Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def chat(number: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"What is {number}?"}, {"role": "ai", "content": f"It is {number}."}]
    }


def answer(record: dict[str, Any], number: int) -> dict[str, Any]:
    """A line as generate writes it."""
    ids = [100 + (number * 31 + at * at) % 190 for at in range(40)]
    return {
        "key": f"{record['dataset']}/{record['row']}/{record['hash']}",
        "dataset": record["dataset"],
        "prompt_hash": content_hash(record["prompt_ids"]),
        "output_ids": [*ids, 2] if number % 5 else ids,
        "finish": "stop" if number % 5 else "length",
        "prompt_tokens": len(record["prompt_ids"]),
        "completion_tokens": 41,
        "latency_s": 1.5,
        "sampling": {"temperature": 1.0},
    }


class Ground:
    """Two preps of prompts, one of answers, and the answers to the prompts, last one first."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.target = make_tokenizer(folder / "target")
        self.responses = folder / "responses"
        self.prompts = {
            name: run_prep(
                patch, folder, write_lines(folder / f"{name}.jsonl", [chat(start + number) for number in range(30)]),
                self.target, dataset=name, out=folder / name, heldout_share=0.2,
            ).records
            for name, start in (("B1", 0), ("B2", 100))
        }  # fmt: skip
        source = write_lines(folder / "A1.jsonl", [chat(number) for number in range(500, 520)])
        self.samples = run_prep(
            patch, folder, source, self.target, kind="answers", dataset="A1", out=folder / "A1", heldout_share=0.2
        ).records
        self.answer()

    def answer(self, name: str = "", edit: Edit = list) -> None:
        """Write the answers, those of ``name`` edited."""
        for dataset, records in self.prompts.items():
            lines = [answer(record, number) for number, record in enumerate(records)][::-1]
            write_lines(self.responses / f"{dataset}.jsonl", edit(lines) if dataset == name else lines)

    def settings(self, **changes: Any) -> Settings:
        settings = Settings(
            samples=(self.folder / "A1",),
            prompts=(self.folder / "B1", self.folder / "B2"),
            responses=self.responses,
            target=str(self.target),
            out=self.folder / "train",
            draft_vocab=64,
        )
        return replace(settings, **changes)

    def merge(self, **changes: Any) -> tuple[int, Result]:
        progress = self.folder / "merge-progress.jsonl"
        progress.unlink(missing_ok=True)
        self.patch.setenv(PROGRESS_VARIABLE, str(progress))
        code = run(self.settings(**changes))
        lines = [line for data in complete_lines(progress) if (line := parse_line(data))]
        result = lines[-1].result
        assert result is not None
        return code, result

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in complete_lines(self.folder / "train" / name)]

    def vanished(self) -> bool:
        return not any((self.folder / "train").glob("*"))


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(tmp_path, monkeypatch)


def test_one_training_set(ground: Ground) -> None:
    code, result = ground.merge()
    assert (code, result.records) == (0, 80)
    train, heldout = ground.rows("train.jsonl"), ground.rows("heldout.jsonl")
    assert len(train) + len(heldout) == 80 and 5 < len(heldout) < 35
    by_key = {row["key"]: row for row in [*train, *heldout]}
    records = [record for each in ground.prompts.values() for record in each]
    aside = {row["key"] for row in heldout}
    for record in [*records, *ground.samples]:
        key = f"{record['dataset']}/{record['row']}/{record['hash']}"
        assert (key in aside) == record["heldout"]
    for each in ground.prompts.values():
        for number, record in enumerate(each):
            given = answer(record, number)
            row = by_key[given["key"]]
            assert row["input_ids"] == record["prompt_ids"] + given["output_ids"]
            expected = [0] * len(record["prompt_ids"]) + [1] * len(given["output_ids"])
            if given["finish"] == "length":
                expected[-1] = 0
            assert row["loss_mask"] == expected and row["finish"] == given["finish"]
    sample = ground.samples[0]
    row = by_key[f"A1/{sample['row']}/{sample['hash']}"]
    assert (row["input_ids"], row["loss_mask"], row["finish"]) == (sample["input_ids"], sample["loss_mask"], "sample")

    vocabulary = json.loads((ground.folder / "train" / "draft_vocab.json").read_bytes())
    with_loss = [token for row in train for token, loss in zip(row["input_ids"], row["loss_mask"], strict=True) if loss]
    assert len(set(vocabulary["ids"])) == vocabulary["size"] == 64
    assert vocabulary["tokens"] == len(with_loss)
    assert vocabulary["coverage"] == sum(token in vocabulary["ids"] for token in with_loss) / len(with_loss)
    assert result.datasets["B1"].kept == 30 and result.datasets["A1"].kept == 20
    assert "0.0% of the answer tokens lost" in result.message


def test_done_is_done_and_other_answers_move_it_aside(ground: Ground) -> None:
    ground.merge()
    before = (ground.folder / "train" / "train.jsonl").read_bytes()
    code, result = ground.merge()
    assert code == 0 and result.message.startswith("already done: ")
    assert result.datasets["B1"].kept == 30

    def changed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**lines[0], "output_ids": [99, 98, 2]}, *lines[1:]]

    ground.answer("B2", changed)
    assert ground.merge()[0] == 0
    assert (ground.folder / "train" / "train.jsonl").read_bytes() != before
    (stale,) = ground.folder.glob("train.stale-*")
    assert (stale / "train.jsonl").read_bytes() == before


def test_a_missing_answer_is_named(ground: Ground) -> None:
    ground.answer("B2", lambda lines: lines[1:])
    code, result = ground.merge()
    assert (code, result.records) == (3, 0) and ground.vanished()
    record = ground.prompts["B2"][-1]
    assert (
        f"B2: 1 of 30 prompts have no answer in {ground.responses}/B2.jsonl: B2/29/{record['hash']}" in result.message
    )
    assert "run generate to its end" in result.message


def test_a_torn_last_line_is_a_missing_answer(ground: Ground) -> None:
    path = ground.responses / "B1.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    code, result = ground.merge()
    assert code == 3 and "1 of 30 prompts have no answer" in result.message


def test_no_answers_at_all(ground: Ground) -> None:
    (ground.responses / "B1.jsonl").unlink()
    code, result = ground.merge()
    assert code == 3 and "B1: none of 30 prompts is answered" in result.message


def test_a_doubled_answer_is_named(ground: Ground) -> None:
    ground.answer("B1", lambda lines: [*lines, lines[4]])
    code, result = ground.merge()
    assert (code, result.records) == (3, 0) and ground.vanished()
    assert "B1: 1 prompts are answered twice" in result.message and "B1/25/" in result.message


def test_an_answer_to_another_prompt_is_refused(ground: Ground) -> None:
    ground.answer("B1", lambda lines: [{**lines[0], "prompt_hash": "0" * 16}, *lines[1:]])
    code, result = ground.merge()
    assert code == 3 and "is to another prompt" in result.message


def test_prompts_that_generate_gave_up_are_counted_not_missed(ground: Ground) -> None:
    ground.answer("B1", lambda lines: lines[2:])
    errors = []
    for number, record in enumerate(ground.prompts["B1"][-2:]):
        given = answer(record, number)
        line = {key: given[key] for key in ("key", "dataset", "prompt_hash")}
        errors.append({**line, "reason": "HTTP 400", "permanent": number == 0, "at": 1.0})
    write_lines(ground.responses / "errors.jsonl", errors)
    code, result = ground.merge()
    assert code == 3 and "1 of 30 prompts have no answer" in result.message, "one may be asked again"
    write_lines(ground.responses / "errors.jsonl", [{**error, "permanent": True} for error in errors])
    code, result = ground.merge()
    assert code == 0
    assert result.datasets["B1"].dropped == {"set aside by generate: HTTP 400": 2}
    assert result.datasets["B1"].read == 30


def test_lost_tokens_are_a_share_with_a_limit(ground: Ground) -> None:
    def bad(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        aborted = {**lines[0], "finish": "abort"}
        empty = {**lines[1], "output_ids": [2], "finish": "stop"}
        looping = {**lines[2], "output_ids": [50, 51] * 100, "finish": "length"}
        return [aborted, empty, looping, *lines[3:]]

    ground.answer("B2", bad)
    code, result = ground.merge()
    assert (code, result.records) == (3, 0) and ground.vanished()
    assert "9.4% of the answer tokens lost (B2 repetitive 7.79%, B2 aborted 1.60%, B2 empty 0.04%)" in result.message
    assert "more than the 2.0% that may be lost" in result.message
    code, result = ground.merge(max_lost_share=0.5)
    assert code == 0
    assert result.datasets["B2"].dropped == {"aborted": 1, "empty": 1, "repetitive": 1}
    assert result.datasets["B2"].read == 30
    assert ground.merge(max_lost_share=0.01)[0] == 3, "what was affordable then is not now"


def test_which_answers_are_lost_is_a_rule_and_truncated_ones_are_kept_by_default(ground: Ground) -> None:
    assert ground.merge()[1].datasets["B1"].kept == 30
    cut = [row for row in ground.rows("train.jsonl") if row["finish"] == "length"]
    assert cut and all(row["loss_mask"][-1] == 0 and row["input_ids"][-1] != 2 for row in cut)
    code, result = ground.merge(drop=("truncated", "aborted", "empty", "repetitive"))
    assert code == 3 and "B1 truncated 9." in result.message and "more than the 2.0% that may be lost" in result.message
    code, result = ground.merge(drop=("truncated",), max_lost_share=0.5)
    assert code == 0 and result.datasets["B1"].dropped == {"truncated": 6}


def test_the_log_has_a_line_a_dataset_with_its_tokens_and_what_was_lost(
    ground: Ground, capfd: pytest.CaptureFixture[str]
) -> None:
    ground.answer("B2", lambda lines: [{**lines[0], "output_ids": [2], "finish": "stop"}, *lines[1:]])
    capfd.readouterr()
    assert ground.merge()[0] == 0
    lines = {line.split()[0]: line.split() for line in capfd.readouterr().err.splitlines() if line}
    manifest = json.loads((ground.folder / "train" / "manifest.json").read_bytes())
    for name, count in manifest["datasets"].items():
        assert lines[name][5:7] == [f"{count['tokens']:,}", f"{count['loss_tokens']:,}"]
    assert lines["B2"][7:] == ["empty", "0.08%"] and lines["A1"][7:] == ["–"]


def dedup(ground: Ground) -> Path:
    """Dedup of all that is there, of which B2's prep repeats a prompt of B1 and one that A1 answers."""
    rows = [chat(100), chat(7), chat(505), *(chat(number) for number in range(101, 128))]
    source = write_lines(ground.folder / "B2.jsonl", rows)
    ground.prompts["B2"] = run_prep(
        ground.patch, ground.folder, source, ground.target, dataset="B2", out=ground.folder / "B2", heldout_share=0.2
    ).records
    ground.answer()
    made = DedupSettings((ground.folder / "A1",), (ground.folder / "B1", ground.folder / "B2"), ground.folder / "dedup")
    assert run_dedup(made) == 0
    return made.out


def test_what_dedup_dropped_is_left_out_and_counted(ground: Ground) -> None:
    known = duplicates.read(dedup(ground))
    assert known is not None and len(known.reasons) == 2
    gone = sum(key.startswith("B2/") for key in known.reasons)
    # Nobody has asked them, so nobody has answered.
    ground.answer("B2", lambda lines: [line for line in lines if line["key"] not in known.reasons])
    code, result = ground.merge(dedup=ground.folder / "dedup")
    assert code == 0, result.message
    assert result.records == 78
    used = {row["key"] for name in ("train.jsonl", "heldout.jsonl") for row in ground.rows(name)}
    assert used.isdisjoint(known.reasons)
    assert sum(result.datasets["B2"].dropped.values()) == gone and result.datasets["B2"].read == 30
    manifest = json.loads((ground.folder / "train" / "manifest.json").read_bytes())
    assert manifest["inputs"]["dedup"] == known.identity and manifest["lost_share"] == 0.0


def test_a_dedup_of_other_records_is_refused(ground: Ground) -> None:
    folder = dedup(ground)
    source = write_lines(ground.folder / "B1.jsonl", [chat(start) for start in range(40, 70)])
    run_prep(ground.patch, ground.folder, source, ground.target, dataset="B1", out=ground.folder / "B1")
    code, result = ground.merge(dedup=folder)
    assert code == 3 and result.message == f"{folder} was made from other records of B1; run dedup again"


def test_a_waived_prep_is_left_out(ground: Ground) -> None:
    code, result = ground.merge(dedup=ground.folder / "dedup", samples=(ground.folder / "A1", ground.folder / "A9"))
    assert code == 0 and result.datasets.keys() == {"A1", "B1", "B2"}
    code, result = ground.merge(dedup=dedup(ground), samples=())
    assert code == 3 and "was made with A1, which is gone; run dedup again" in result.message


def test_a_group_is_on_one_side_of_the_split_in_all_datasets(ground: Ground) -> None:
    """The same rows again under another name: with the same share they go along, with another one they are refused."""
    for share in (0.2, 0.9):
        outcome = run_prep(
            ground.patch, ground.folder, ground.folder / "B1.jsonl", ground.target,
            dataset="B3", out=ground.folder / f"B3-{share}", heldout_share=share,
        )  # fmt: skip
        ground.prompts["B3"] = outcome.records
        ground.answer()
        prompts = (ground.folder / "B1", ground.folder / "B2", ground.folder / f"B3-{share}")
        code, result = ground.merge(prompts=prompts)
        if share == 0.2:
            assert code == 0
            sides = [{row["group"] for row in ground.rows(name)} for name in ("train.jsonl", "heldout.jsonl")]
            assert sides[0] and sides[1] and not sides[0] & sides[1]
        else:
            assert code == 3
            assert "is held out in one dataset and trained on in another" in result.message


def test_ids_the_target_does_not_have(ground: Ground) -> None:
    ground.answer("B1", lambda lines: [{**lines[0], "output_ids": [100, 99_999, 2]}, *lines[1:]])
    code, result = ground.merge()
    assert code == 3 and "token id 99999 is not in the target's vocabulary" in result.message


def test_preps_that_do_not_belong_together(ground: Ground) -> None:
    assert "given twice" in ground.merge(prompts=(ground.folder / "B1", ground.folder / "B1"))[1].message
    assert "it was given as answers" in ground.merge(samples=(ground.folder / "B1",))[1].message
    assert "has not finished" in ground.merge(samples=(ground.folder / "none",))[1].message
    source = write_lines(ground.folder / "A2.jsonl", [chat(1)])
    run_prep(
        ground.patch, ground.folder, source, ground.target, kind="answers", dataset="A2", out=ground.folder / "A2",
        template_json={"thinking": True},
    )  # fmt: skip
    message = ground.merge(samples=(ground.folder / "A2",))[1].message
    assert "another tokenizer or template" in message
    records = ground.folder / "B1" / "records.jsonl"
    records.write_bytes(records.read_bytes()[:-1])
    assert "is not the file its manifest speaks of" in ground.merge()[1].message


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ([], "nothing to merge"),
        (["--samples", "s", "--drop", "short"], "'short' is none of truncated, aborted, empty, repetitive"),
        (["--prompts", "p"], "needs --responses"),
        (["--samples", "s", "--draft-vocab", "0"], "0"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], extra: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as end:
        command.main(["--target", "t", "--out", "o", *extra])
    assert end.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.long
def test_killed_at_any_moment_it_writes_the_same(ground: Ground) -> None:
    argv = [sys.executable, "-m", "pipeline.merge", "--samples", str(ground.folder / "A1")]
    for name in ("B1", "B2"):
        argv += ["--prompts", str(ground.folder / name)]
    argv += ["--responses", str(ground.responses), "--target", str(ground.target), "--draft-vocab", "64", "--out"]
    whole, out = ground.folder / "whole", ground.folder / "killed"
    began = time.monotonic()
    subprocess.run([*argv, str(whole)], cwd=ROOT, check=True, capture_output=True)
    took = time.monotonic() - began
    expected = {path.name: path.read_bytes() for path in whole.iterdir()}
    moments = random.Random(6)
    for _ in range(5):
        with subprocess.Popen([*argv, str(out)], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            time.sleep(took * moments.uniform(0.6, 1.0))  # before that it is still loading
            process.kill()
    subprocess.run([*argv, str(out)], cwd=ROOT, check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected
