"""The questions on Python's functions: as many as are wanted, no two the same, of many forms and modules."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from pipeline.demo.questions import FORMS, main, questions
from pipeline.prep.shapes import READERS


def test_ten_thousand_are_all_different_and_the_same_again() -> None:
    asked = questions(10_000)
    assert len(set(asked)) == 10_000
    assert asked == questions(10_000)
    assert asked != questions(10_000, seed=1)


def test_they_have_many_forms_and_modules() -> None:
    asked = questions(10_000)
    beginnings = [re.escape(form.partition("{")[0]) for form in FORMS]
    assert len(FORMS) >= 20
    assert all(any(re.match(one, question) for question in asked) for one in beginnings)
    named = {match[1] for question in asked if (match := re.search(r"`([\w.]+)\.\w+`", question))}
    assert len(named) >= 100


def test_prep_reads_what_is_written(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "D"), "--count", "50"]) == 0
    rows = [msgspec.json.decode(line) for line in (tmp_path / "D" / "train.jsonl").read_bytes().splitlines()]
    assert [READERS["messages"](row)[0].text for row in rows] == questions(50)


def test_more_than_there_are_is_refused_with_how_many_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--count", "10000000"])
    assert re.search(r"there are [\d,]+ questions, not 10,000,000", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
