"""What a stage says of itself: every report in the progress file, the phases and the result in the log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pipeline.progress import Reporter, parse_line


def test_the_log_has_phases_and_result_and_the_file_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "progress.jsonl"
    reporter = Reporter(path, interval_s=0.0)
    reporter.update("loading", note="a/model")
    for done in range(200):
        reporter.update("reading", done=done, total=200)
    reporter.finish(150, "150 of 200 kept")
    said = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["loading · a/model", "reading: 0 of 200 records", "150 of 200 kept"]
    lines = [parsed for line in path.read_bytes().splitlines() if (parsed := parse_line(line)) is not None]
    assert len(lines) == 202
    assert lines[-1].result is not None


def test_without_a_file_every_report_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DRAFTDECK_PROGRESS", raising=False)
    reporter = Reporter(interval_s=0.0)
    for done in range(1, 4):
        reporter.update("reading", done=done)
    reporter.finish(3, "3 kept")
    assert capsys.readouterr().err.splitlines() == [*(f"reading: {done} records" for done in (1, 2, 3)), "3 kept"]


def test_a_log_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.jsonl"
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    monkeypatch.setattr("sys.stderr", full)
    reporter = Reporter(path)
    reporter.update("reading", done=1)
    reporter.finish(1, "1 kept")
    monkeypatch.undo()
    lines = [parsed for line in path.read_bytes().splitlines() if (parsed := parse_line(line)) is not None]
    assert [line.result is not None for line in lines] == [False, True]
