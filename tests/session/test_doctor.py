"""Doctor on real hosts: the loopback container and OpenSSH, with and without an agent, and left as they were found."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from console import commands
from console import host as hosts
from console.config import Config, load
from console.demo_config import SOURCES
from console.link.deploy import deploy, ensure_agent
from console.watching import Host
from pipeline.agent import locks, paths
from pipeline.agent.attempts.secret_files import write_secret
from tests.link.conftest import Server, run_agent, server, workdir
from tests.session.test_session import config_for

__all__ = ["server", "workdir"]


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder: inode and time of change."""
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in (folder, *sorted(folder.rglob("*")))}


async def examined(config: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the lines by topic."""
    code = await commands.doctor(Host(config), as_json=True)
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {finding["topic"]: finding for finding in findings}


def sound(folder: Path, config: Path, port: int) -> Path:
    """The config with a model and sources that are there, and a port that can be had."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    text = config.read_text().replace("/no/model", str(model)).replace("port = 1\n", f"port = {port}\n")
    for name in SOURCES:
        (folder / name).touch()
        text = text.replace(f"/no/{name}", str(folder / name))
    config.write_text(text)
    return config


async def started(config: Config) -> None:
    async with hosts.connected(config) as link:
        workdir, python = config.host.workdir, config.host.python
        await ensure_agent(link, workdir, python, await deploy(link, workdir, python), by="test")


async def test_a_host_before_and_after_its_agent(
    server: Server, workdir: Path, tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sound(tmp_path, config_for(server, workdir, tmp_path), unused_tcp_port)
    before = state_of(workdir)
    code, found = await examined(config, capsys)
    assert code == commands.WELL, [one for one in found.values() if one["state"] == "wrong"]
    assert "SHA256:" in found["ssh"]["text"] and str(server.endpoint.port) in found["ssh"]["text"]
    assert f"is {sys.version.split()[0]} in {sys.prefix}" in found["python"]["text"]
    assert "msgspec" in found["modules, agent"]["text"] and "torch" in found["modules, serve"]["text"]
    assert found["agent"]["text"] == "nothing was deployed here yet: draftdeck apply does it"
    assert found["work directory"]["text"].startswith(f"{workdir} can be written to")
    assert state_of(workdir) == before and len(state_of(Path(paths.runtime_path(workdir)))) == 1

    await started(load(config))
    before = state_of(workdir / "releases")
    code, found = await examined(config, capsys)
    assert code == commands.WELL
    agent = locks.holder(str(Path(paths.runtime_path(workdir)) / "agent.lock"))
    assert agent is not None and found["agent"]["text"].startswith(f"runs as pid {agent.pid}, release ")
    assert found["keeper"]["state"] == "ok"
    start = workdir / "agent" / "start"
    assert found["start hook"]["state"] == "warning"
    assert f"entrypoint, before its own command: {start}\n" in found["start hook"]["advice"]
    assert f"'@reboot {start}'" in found["start hook"]["advice"]
    assert state_of(workdir / "releases") == before


async def test_what_is_wrong_is_found(
    server: Server, workdir: Path, tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sound(tmp_path, config_for(server, workdir, tmp_path), unused_tcp_port)
    text = config.read_text() + '\n[notify]\nwebhook = "HOOK"\nheartbeat = "BEAT"\n'
    config.write_text(text)
    (tmp_path / "model" / "config.json").unlink()
    (tmp_path / "A1").unlink()
    runtime = paths.runtime_dir(workdir)
    write_secret(runtime, "HOOK", "https://ntfy.sh/x")
    (Path(runtime) / "secrets" / "HOOK").chmod(0o644)
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        code, found = await examined(config, capsys)
    assert code == commands.TROUBLE
    assert f"{tmp_path / 'A1'} (A1)" in found["datasets"]["text"]
    assert "no config.json in it" in found["target"]["text"]
    assert found["port"]["state"] == "wrong" and "Address already in use" in found["port"]["text"]
    assert found["secret"]["text"] == "BEAT is not set there"  # the last of them
    assert await commands.doctor(Host(config), as_json=False) == commands.TROUBLE
    shown = capsys.readouterr().out
    assert "✗ wrong   secret" in shown and f"chmod 600 {runtime}/secrets/HOOK" in shown and "ntfy.sh" not in shown


async def test_an_agent_that_is_gone_is_missed(
    server: Server, workdir: Path, tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sound(tmp_path, config_for(server, workdir, tmp_path), unused_tcp_port)
    await started(load(config))
    assert run_agent(workdir, "stop")
    code, found = await examined(config, capsys)
    assert code == commands.TROUBLE
    assert found["agent"]["text"] == "it does not run: nothing is supervised"
    assert found["agent"]["advice"] == f"run {workdir / 'agent' / 'start'}"


async def test_no_python_and_no_login_are_one_line_each(
    server: Server, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(server, workdir, tmp_path)
    text = config.read_text()
    config.write_text(text.replace(f'python = "{sys.executable}"', 'python = "/no/such/python"', 1))
    code, found = await examined(config, capsys)
    assert code == commands.TROUBLE and list(found) == ["ssh", "python"]
    assert "/no/such/python does not run" in found["python"]["text"]
    (tmp_path / "hosts").touch()
    config.write_text(text.replace(str(server.endpoint.known_hosts), str(tmp_path / "hosts")))
    code, found = await examined(config, capsys)
    assert code == commands.UNREACHABLE and list(found) == ["ssh"]
    assert "is not known yet" in found["ssh"]["text"] and "--accept-new-host-key" in found["ssh"]["text"]
    assert (tmp_path / "hosts").read_text() == ""


async def test_the_engine_may_have_a_python_of_its_own(
    server: Server, workdir: Path, tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = sound(tmp_path, config_for(server, workdir, tmp_path), unused_tcp_port)
    config.write_text(config.read_text().replace("[serve]\n", '[serve]\npython = "/no/sglang/python"\n'))
    code, found = await examined(config, capsys)
    assert code == commands.TROUBLE
    assert "/no/sglang/python does not run" in found["modules, serve"]["text"] and found["clock"]["state"] == "ok"
