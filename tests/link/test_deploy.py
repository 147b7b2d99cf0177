"""Deploying the pipeline's code, and starting the real agent from it, against both servers."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.client import AgentClient
from console.link import onhost
from console.link.channel import bridge_argv
from console.link.deploy import Release, current_release, deploy, ensure_agent, local_release
from console.link.errors import DeployError
from console.link.reconnect import LARGE, Link
from tests.link.conftest import Server

PYTHON = sys.executable


def releases_of(workdir: Path) -> list[str]:
    return sorted(path.name for path in (workdir / "releases").iterdir())


async def test_the_second_deploy_does_nothing(server: Server, workdir: Path) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        name = await deploy(link, str(workdir), PYTHON)
        package = workdir / "releases" / name / "pipeline"
        before = {path: path.stat().st_ino for path in package.rglob("*.py")}
        assert len(before) > 20
        assert onhost.release_hash(onhost.release_files(package)) == name == local_release().name
        assert await deploy(link, str(workdir), PYTHON) == name
        assert {path: path.stat().st_ino for path in package.rglob("*.py")} == before
        assert releases_of(workdir) == [name]
        assert await current_release(link, str(workdir), PYTHON) == ""


async def test_a_damaged_release_is_set_aside_and_made_again(server: Server, workdir: Path) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        name = await deploy(link, str(workdir), PYTHON)
        place = workdir / "releases" / name / "pipeline" / "protocol.py"
        place.write_text("torn")
        assert await deploy(link, str(workdir), PYTHON) == name
        assert place.read_text() != "torn"
        assert any(".damaged-" in path.name for path in (workdir / "releases").iterdir())


async def test_a_large_release_and_a_cut_upload(server: Server, workdir: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "data.bin").write_bytes(os.urandom(LARGE + 4096))
    large = local_release(package)
    assert len(large.archive) > LARGE
    async with Link(server.endpoint) as link:
        await link.connected(20)
        with pytest.raises(DeployError, match="Error"):
            await deploy(link, str(workdir), PYTHON, Release(large.name, large.archive[: LARGE // 2]))
        assert releases_of(workdir) == []
        with pytest.raises(DeployError, match="has the hash"):
            await deploy(link, str(workdir), PYTHON, Release("0" * 16, large.archive))
        assert releases_of(workdir) == []
        await deploy(link, str(workdir), PYTHON, large)
        assert releases_of(workdir) == [large.name]


async def test_what_the_container_lacks_is_named(server: Server, workdir: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    python = str(bare / "bin" / "python")
    old = tmp_path / "python3.9"
    # An interpreter that is too old: the real one's answers to the two command lines that matter.
    old.write_text('#!/bin/sh\nif [ "$1" = -P ]; then echo "Unknown option: -P" >&2; exit 2; fi\necho "version 3.9"\n')
    old.chmod(0o755)
    async with Link(server.endpoint) as link:
        await link.connected(20)
        name = await deploy(link, str(workdir), python)
        with pytest.raises(DeployError) as lacking:
            await ensure_agent(link, str(workdir), python, name, by="test")
        assert f"{python} -m pip install psutil httpx starlette uvicorn msgspec" in str(lacking.value)
        with pytest.raises(DeployError, match=r"/no/such/python does not run on 127\.0\.0\.1.*config"):
            await deploy(link, str(workdir), "/no/such/python")
        with pytest.raises(DeployError, match=r"is Python 3\.9; the agent needs 3\.11"):
            await deploy(link, str(workdir), str(old))
        with pytest.raises(DeployError, match="absolute"):
            await deploy(link, "~/work", PYTHON)


async def test_the_agent_starts_stays_and_makes_way(server: Server, workdir: Path, tmp_path: Path) -> None:
    async with Link(server.endpoint) as link:
        await link.connected(20)
        first = await deploy(link, str(workdir), PYTHON)
        started = await ensure_agent(link, str(workdir), PYTHON, first, by="test")
        assert started.release == first
        assert started.workdir == str(workdir)
        again = await ensure_agent(link, str(workdir), PYTHON, first, by="test")
        assert again.pid == started.pid

        other = tmp_path / "pipeline"
        for path, content in onhost.release_files(workdir / "releases" / first / "pipeline").items():
            (other / path).parent.mkdir(parents=True, exist_ok=True)
            (other / path).write_bytes(content)
        (other / "NOTES").write_text("another release\n")
        second = await deploy(link, str(workdir), PYTHON, local_release(other))
        assert second != first
        upgraded = await ensure_agent(link, str(workdir), PYTHON, second, by="test")
        assert upgraded.release == second
        assert upgraded.pid != started.pid
        assert await current_release(link, str(workdir), PYTHON) == second

        # The console ends here and comes back: the agent is the same one.
    async with Link(server.endpoint) as link:
        await link.connected(20)
        async with AgentClient(link, bridge_argv(str(workdir), PYTHON, second, read_only=True)) as agent:
            assert (await agent.state()).agent.pid == upgraded.pid


@given(st.dictionaries(st.text("ab/.", min_size=1), st.binary(max_size=20), max_size=4))
def test_the_hash_knows_every_byte(files: dict[str, bytes]) -> None:
    name = onhost.release_hash(files)
    assert name == onhost.release_hash(dict(reversed(files.items())))
    for key in files:
        assert onhost.release_hash({**files, key: files[key] + b"x"}) != name
    assert onhost.release_hash({**files, "one more": b""}) != name


def test_caches_hidden_files_and_links_are_no_part_of_a_release(tmp_path: Path) -> None:
    (tmp_path / "a" / "__pycache__").mkdir(parents=True)
    (tmp_path / "a" / "__pycache__" / "m.pyc").write_bytes(b"1")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "m.py").write_bytes(b"2")
    (tmp_path / "a" / "m.py").write_bytes(b"3")
    (tmp_path / "a" / "m.py~").write_bytes(b"4")
    (tmp_path / "data.json").write_bytes(b"{}")
    (tmp_path / "link.py").symlink_to("a/m.py")
    assert onhost.release_files(tmp_path) == {"a/m.py": b"3", "data.json": b"{}"}


@pytest.mark.parametrize("name", ["../outside.py", "/etc/outside.py", "a/../../outside.py"])
def test_an_archive_cannot_write_outside(tmp_path: Path, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        tar.addfile(entry, io.BytesIO(b""))
    with pytest.raises(ValueError, match="unexpected entry"):
        onhost.install(tmp_path, "0" * 16, buffer.getvalue())
    assert not list(tmp_path.rglob("outside.py"))


def test_an_installer_that_is_killed_leaves_no_release(tmp_path: Path) -> None:
    release = local_release()
    argv = [PYTHON, onhost.__file__, "install", str(tmp_path), release.name]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(release.archive[:-10])
    process.stdin.flush()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    assert not onhost.look(tmp_path, release.name)["complete"]
    assert onhost.install(tmp_path, release.name, release.archive)["complete"]
