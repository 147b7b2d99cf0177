"""The demo's ten datasets: the same every time, usable by prep as the public ones are, their pitfalls counted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from console.demo_config import SOURCES
from pipeline.dedup.stage import Settings as DedupSettings
from pipeline.dedup.stage import run as dedup
from pipeline.demo import datasets
from pipeline.demo.texts import items
from tests.prep.small import Outcome, make_tokenizer, run_prep

SIZE = 12
SHAPES = {
    "A1": "messages", "A2": "messages", "B1": "dialogue", "B2": "pair", "B3": "pair", "B4": "messages",
    "B5": "conversations", "B6": "conversations", "B7": "messages", "B8": "trajectory",
}  # fmt: skip
DROPPED = {
    "A1": {"no assistant turn": 1, "duplicate": 1},
    "A2": {"an empty user turn": 1},
    "B1": {"no dialogue column with text": 1},
    "B3": {"undecodable: not JSON": 1, "no prompt column with text": 1, "duplicate": 1},
    "B4": {"no turns": 1},
    "B5": {"an empty user turn": 1, "duplicate": 1},
    "B6": {"no user turn": 1, "begins with an assistant turn": 1, "no turns": 1},
    "B7": {"undecodable: JSON in a string is broken": 1},
    "B8": {"an empty user turn": 1},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    began = time.process_time()
    assert datasets.main(["--out", str(folder), "--size", str(SIZE)]) == 0
    assert time.process_time() - began < 10
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("target"))


def prep(patch: pytest.MonkeyPatch, folder: Path, sources: Path, target: Path, name: str) -> Outcome:
    return run_prep(
        patch, folder, sources / name, target,
        dataset=name,
        kind="answers" if name.startswith("A") else "prompts",
        split="train_sft" if name == "B4" else None,
        shape=SOURCES[name].shape,
        take=SIZE if name == "B2" else None,
        out=folder / name,
    )  # fmt: skip


@pytest.mark.parametrize("name", [maker.name for maker in datasets.MAKERS])
def test_every_set_gives_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Path, target: Path, name: str
) -> None:
    outcome = prep(monkeypatch, tmp_path, made, target, name)
    assert outcome.code == 0
    assert outcome.manifest is not None and outcome.manifest["shape"]["name"] == SHAPES[name]
    count = outcome.result.datasets[name]
    assert count.kept == SIZE == len(outcome.records)
    if name == "B2":
        assert count.read == 50_500
        assert set(count.dropped) <= {"not sampled", "no prompt column with text"}
    else:
        assert count.dropped == DROPPED[name]
    if not name.startswith("A"):
        assert max(len(record["prompt_ids"]) for record in outcome.records) < 1200, "short, for a small model"
        assert len({str(record["messages"]) for record in outcome.records}) == SIZE


def test_the_same_bytes_every_time(tmp_path: Path, made: Path) -> None:
    datasets.main(["--out", str(tmp_path), "--size", str(SIZE)])
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 12
    for file in files:
        assert (tmp_path / file).read_bytes() == (made / file).read_bytes(), file


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("B1", 'no user turn; roles seen: "REPLIER" 36, "ASKER" 24'),
        ("B5", f'0 of {SIZE + 2} kept: no user turn; roles seen: "asker" {SIZE + 2}, "replier" {SIZE + 2}, "system"'),
        ("B2", "no prompt column with text, 1,010 rows; columns seen: id, asker, replier, domain, "),
        ("B2", "expected a column prompt, instruction, question, problem, query, input, user, human"),
        ("B4", 'no user turn; roles seen: "asker" 16, "replier" 16; expected one of user, human'),
        ("B7", f'no user turn; roles seen: "asker" {SIZE}, "replier" {SIZE}, "system" {SIZE}; expected one of user'),
        ("B8", "expected one of user, human"),
        ("B3", "asker: null or text, replier: text"),
    ],
)
def test_a_broken_set_is_empty_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, name: str, words: str
) -> None:
    sources = tmp_path / "sources"
    datasets.main(["--out", str(sources), "--size", str(SIZE), "--big", "1000", "--only", name, "--break", name])
    outcome = prep(monkeypatch, tmp_path, sources, target, name)
    assert (outcome.code, outcome.result.records) == (3, 0)
    assert words in outcome.result.message
    assert "\n" not in outcome.result.message and len(outcome.result.message) < 400


def test_a_large_size_has_text_enough_and_a_larger_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert datasets.make(datasets.MAKERS[4], tmp_path, 3000) == 3002
    assert len({item.question for item in items(10, 4, 3000)}) == 3000
    with pytest.raises(SystemExit):
        datasets.main(["--out", str(tmp_path), "--size", "1000000", "--only", "B3"])
    assert "there is text for" in capsys.readouterr().err


def test_no_two_rows_of_the_demo_are_taken_for_one(
    made: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for maker in datasets.MAKERS:
        prep(monkeypatch, tmp_path, made, target, maker.name)
    folders = [tmp_path / maker.name for maker in datasets.MAKERS]
    given = DedupSettings(tuple(folders[:2]), tuple(folders[2:]), tmp_path / "dedup")
    assert dedup(given) == 0
    assert (tmp_path / "dedup" / "dropped.jsonl").read_bytes() == b""
