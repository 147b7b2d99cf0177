"""The demo's folder: what is a demo is gone on with, what is none is left alone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from console import demo
from console.cli import main
from console.demo_config import demo_config


def made(root: Path, port: int = 2222) -> demo.Folders:
    """A demo's folder as ``prepare`` leaves it, without its data."""
    places = demo.folders(root)
    places.container.mkdir(parents=True)
    (places.container / "container.json").write_text(f'{{"port": {port}}}')
    text = demo_config(
        port=port, user="me", key="k", known_hosts="h", workdir="/w", python="p", model_dir="/m",
        sources={"B5": "s"}, size=4, server_port=3333,
    )  # fmt: skip
    places.config.write_text(text)
    return places


@pytest.mark.parametrize("option", ["--headless", "--fresh", "--stop"])
def test_a_folder_with_another_config_is_left_alone(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[run]\nname = "real"\n')
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--dir", str(tmp_path), option])
    assert ended.value.code == 1
    assert "no demo's" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("option", ["--headless", "--fresh", "--stop"])
def test_a_file_in_place_of_the_folder_is_said(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "thesis.tex"
    file.write_text("all of it")
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--dir", str(file), option])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"draftdeck: {file} is no folder; name one with --dir\n"
    assert file.read_text() == "all of it"


@pytest.mark.parametrize("name", ["", "not/there"])
def test_where_no_demo_is_none_is_ended(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--dir", str(tmp_path / name), "--stop"])
    assert ended.value.code == 1
    assert f"there is no demo in {tmp_path / name}: nothing was ended" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(demo.DemoError, match=r"file/demo cannot be made: Not a directory; name a folder with --dir"):
        demo.prepare(demo.folders(tmp_path / "file" / "demo"), 4)


def test_a_folder_of_other_files_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(demo.DemoError, match="no demo's folder"):
        demo.remove(demo.folders(tmp_path))
    assert (tmp_path / "thesis.tex").exists()


def test_a_demo_is_deleted(tmp_path: Path) -> None:
    places = made(tmp_path / "demo")
    demo.remove(places)
    assert not places.root.exists()


def test_a_demo_that_is_there_cannot_be_broken(tmp_path: Path) -> None:
    with pytest.raises(demo.DemoError, match="--break goes with --fresh"):
        demo.prepare(made(tmp_path / "demo"), 4, "B5")


def test_the_config_follows_the_container_to_another_port(tmp_path: Path) -> None:
    places = made(tmp_path / "demo")
    before = places.config.read_text()
    demo.follow_port(places.config, 4444)
    assert places.config.read_text() == before.replace("port = 2222", "port = 4444")


def test_whether_the_container_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        places = made(tmp_path / "demo", listener.getsockname()[1])
        assert demo.container_runs(places)
    assert not demo.container_runs(places)
    assert not demo.container_runs(demo.folders(tmp_path / "none"))


@pytest.mark.parametrize("argv", [["--size", "0"], ["--size", "many"], ["--break", "B11"]])
def test_wrong_arguments(argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--dir", str(tmp_path / "demo"), *argv])
    assert ended.value.code == 2
    assert argv[1] in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()
