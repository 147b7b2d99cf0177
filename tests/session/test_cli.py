"""The command line's own rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.cli import build_parser, main


@pytest.mark.parametrize(
    "argv",
    [["--config", "my.toml", "status"], ["status", "--config", "my.toml"], ["status", "--json", "--config=my.toml"]],
)
def test_common_options_stand_on_either_side(argv: list[str]) -> None:
    arguments = build_parser().parse_args(argv)
    assert arguments.config == Path("my.toml")
    assert not arguments.read_only


def test_the_default_config() -> None:
    assert build_parser().parse_args(["status"]).config == Path("config.toml")
    assert build_parser().parse_args(["--read-only", "status"]).read_only


@pytest.mark.parametrize("command", [["kill", "generate"], ["apply"], ["waive", "merge", "--reason", "no need"]])
def test_read_only_changes_nothing(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--read-only", *command])
    assert ended.value.code == 2
    assert "leave --read-only out" in capsys.readouterr().err


def test_a_restart_takes_those_behind_it_only_when_told_to() -> None:
    parse = build_parser().parse_args
    assert not parse(["restart", "serve:baseline"]).with_dependents
    assert parse(["restart", "serve:baseline", "--with-dependents"]).with_dependents
    with pytest.raises(SystemExit):
        parse(["stop", "serve:baseline", "--with-dependents"])
