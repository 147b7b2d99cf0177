"""``--inspect``: what the page says, and that nothing of a row reaches the terminal as anything but text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prep import kimi
from tests.prep.small import write_lines
from tests.prep.test_stage import chat
from tests.pseudo_terminal import on_terminal

HOSTILE = "Look:\x1b[2J\x07\u202e\r\ud800 and ⟧ and [red]"


def arguments(*more: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.prep", *more]


def shown(*more: str) -> tuple[int, str]:
    """The exit code and the page, where no terminal is."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("DRAFTDECK_PROGRESS", None)
    done = subprocess.run(arguments(*more), capture_output=True, env=environment, timeout=120)
    assert not done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode()


def rows(folder: Path) -> Path:
    hostile = {"messages": [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": "Fine."}]}
    long = {"messages": [{"role": "user", "content": "long " * 4000}, {"role": "assistant", "content": "yes"}]}
    broken = [{"messages": [{"role": "as\x1b[31mker", "content": "x"}]}, {"messages": None}]
    given = [
        hostile | {"messages": [{"role": "user", "content": HOSTILE.replace("\ud800", "")}, *hostile["messages"][1:]]}
    ]
    return write_lines(folder / "in.jsonl", [*given, hostile, long, *broken, *(chat(n) for n in range(60)), chat(3)])


def test_a_page_without_colours(tmp_path: Path) -> None:
    source, target = rows(tmp_path), kimi.make(tmp_path / "kimi")
    before = sorted(tmp_path.iterdir())
    code, page = shown(
        "--inspect", str(source), "--target", str(target), "--trust-remote-code", "--context-length", "400"
    )
    assert code == 0
    assert "shape    messages, 98% of the first 64 rows read so, 98% of them with known roles only\n" in page
    assert 'roles    "assistant" 64, "user" 64, "as [31mker" 1\n         unknown: as [31mker\n' in page
    assert page.count("── row ") == 10
    assert "── row 0, " in page
    assert (
        "<|im_user|>user<|im_middle|>Look:\\x1b[2J\\x07\\u202e\\r and \\u27e7 and [red]<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>⟦Fine.<|im_end|>⟧\n" in page
    )
    assert "kept     61 of the 66 rows looked at, " in page
    for reason in ('"messages" is null: 1', "duplicate: 1", "too long: 1", 'unknown role "as [31mker": 1'):
        assert f"dropped  {reason}\n" in page
    assert "dropped  undecodable: a lone surrogate in the text: 1\n" in page
    assert 'row 4: {"messages":null}' in page
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", page)
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


def test_without_a_target_and_of_prompts(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "in.jsonl", [{"instruction": f"Do {number}.", "id": number} for number in range(20)]
    )
    code, page = shown("--inspect", str(source))
    assert code == 0
    assert "shape    pair, 100% of the first 20 rows read so\ncolumns  instruction, id\nkind     prompts\n" in page
    assert "target   none" in page and "user: Do 9." in page and "Do 10." not in page
    assert "kept     20 of the 20 rows looked at\n" in page


def test_what_cannot_be_inspected(tmp_path: Path) -> None:
    code, page = shown("--inspect", str(tmp_path / "none.jsonl"))
    assert code == 1 and "no such file or folder" in page
    odd = [{"turns": [{"speaker": "asker", "utterance": "q"}, {"speaker": "replier", "utterance": "a"}]}]
    code, page = shown(f"--inspect={write_lines(tmp_path / 'odd.jsonl', odd * 3)}")
    assert code == 3
    assert "turns: list of {speaker, utterance}" in page and 'roles seen: "asker" 3, "replier" 3' in page
    assert "nearest: trajectory, turns lack" in page or 'nearest: messages, turns lack "role" and "content"' in page
    code, page = shown("--inspect", str(write_lines(tmp_path / "empty.jsonl", [])))
    assert code == 3 and "0 rows" in page


@pytest.mark.parametrize("colour", [True, False], ids=["colours", "NO_COLOR"])
def test_on_a_terminal(tmp_path: Path, colour: bool, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    with on_terminal(arguments("--inspect", str(rows(tmp_path)), "--target", str(target))) as screen:
        screen.read_until("── row 0, ", 120)
        screen.read_until("row 4: ", 120)
    assert (b"\x1b[1;32mFine.<|im_end|>\x1b[0m" in screen.seen) == colour
    assert ("⟦Fine.<|im_end|>⟧" in screen.seen.decode()) != colour
    allowed = {b"1;32m", b"2m", b"33m", b"0m"} if colour else set()
    assert {one[:5].partition(b"m")[0] + b"m" for one in screen.seen.split(b"\x1b[")[1:]} == allowed
    assert screen.seen.count(b"\x1b") == screen.seen.count(b"\x1b[") and b"\x07" not in screen.seen
