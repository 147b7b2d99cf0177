"""Puts the pipeline's code on the container, once for each content, and sees to it that an agent runs there."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import io
import json
import tarfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from console.client import AgentClient
from console.link import onhost
from console.link.channel import bridge_argv
from console.link.errors import AgentError, DeployError, LinkDown, last_line, one_line
from console.link.reconnect import Completed, Link
from pipeline.protocol import ActionRequest, AgentInfo

OLDEST_PYTHON: Final = (3, 11)
AGENT_MODULES: Final = ("psutil", "httpx", "starlette", "uvicorn", "msgspec")
START_TIMEOUT_S: Final = 45.0  # longer than the start command waits itself
_PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class Release:
    """The pipeline's code as it is on this machine: content hash and a compressed archive."""

    name: str
    archive: bytes


def local_release(package: Path | None = None) -> Release:
    """Read a pipeline package (the installed one unless given) once, and pack exactly what was hashed."""
    files = onhost.release_files(package or installed_package())
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return Release(onhost.release_hash(files), buffer.getvalue())


def installed_package() -> Path:
    """The folder of the pipeline's code beside the console."""
    spec = importlib.util.find_spec("pipeline")
    if spec is None or not spec.submodule_search_locations:
        raise DeployError("the package 'pipeline' is not beside the console: install draftdeck again")
    return Path(spec.submodule_search_locations[0])


async def deploy(link: Link, workdir: str, python: str, release: Release | None = None) -> str:
    """Bring the release to ``<workdir>/releases/<hash>`` unless it is there and whole. Returns its hash.

    Raises ``DeployError`` where the container cannot take it, ``LinkDown`` where the wire fails; a release that is half
    there is never taken for a whole one, and calling again goes on.
    """
    if not PurePosixPath(workdir).is_absolute():
        raise DeployError(f"the work directory must be an absolute path on the host, not {workdir!r}")
    if release is None:
        release = await asyncio.to_thread(local_release)
    seen = await on_host(link, python, "look", workdir, release.name)
    if not seen["complete"]:
        seen = await on_host(link, python, "install", workdir, release.name, data=release.archive)
        if not seen["complete"]:
            raise DeployError(
                f"the release {release.name} in {workdir}/releases is not what was sent: is the disk sound?"
            )
    return release.name


async def current_release(link: Link, workdir: str, python: str) -> str:
    """The release that the container's agent starts with; empty where none was ever deployed. Changes nothing."""
    return str((await on_host(link, python, "look", workdir, "none"))["current"])


async def ensure_agent(link: Link, workdir: str, python: str, release: str, *, by: str) -> AgentInfo:
    """See to it that an agent of ``release`` runs for ``workdir`` and answers.

    A running agent of another release is asked to make way for this one; its jobs go on. Raises ``DeployError`` with
    the reason where no agent comes up.
    """
    async with AgentClient(link, bridge_argv(workdir, python, release)) as agent:
        running = await _running(agent)
        if isinstance(running, AgentInfo) and running.release == release and running.keeper:
            return running
        await _check_modules(link, python)
        await on_host(link, python, "point", workdir, release)
        start = agent_argv(workdir, python, release, "start", "--workdir", workdir)
        started = await link.run(start, timeout_s=START_TIMEOUT_S)
        if started.code != 0:
            raise DeployError(f"the agent did not start: {_complaint(started)}")
        running = await _running(agent)
        if not isinstance(running, LinkDown) and not (isinstance(running, AgentInfo) and running.release == release):
            reply = await agent.upgrade(release, ActionRequest(by=by, request=uuid.uuid4().hex))
            if not reply.done:
                raise DeployError(f"the agent that runs there did not make way: {one_line(reply.text)}")
        return await _answering(agent, workdir, release)


def agent_argv(workdir: str, python: str, release: str, *arguments: str) -> Sequence[str]:
    """The remote command line of ``python -m pipeline.agent …`` of a deployed release."""
    # -P: a folder called pipeline in the login folder must not be taken for ours.
    return ("env", f"PYTHONPATH={workdir}/releases/{release}", python, "-P", "-m", "pipeline.agent", *arguments)


async def _running(agent: AgentClient) -> AgentInfo | AgentError | LinkDown:
    """The agent that runs, or why none is understood (``AgentError``) or reached (``LinkDown``)."""
    try:
        return (await agent.state(any_protocol=True)).agent
    except (LinkDown, AgentError) as error:
        return error


async def _answering(agent: AgentClient, workdir: str, release: str) -> AgentInfo:
    """Wait until an agent of ``release`` answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        running = await _running(agent)
        if isinstance(running, AgentInfo) and running.release == release:
            return running
        if time.monotonic() > deadline:
            found = f"is still of release {running.release}" if isinstance(running, AgentInfo) else f"says: {running}"
            raise DeployError(f"the agent of {workdir} {found}. See agent.log in its runtime folder")
        await asyncio.sleep(_PAUSE_S)


async def _check_modules(link: Link, python: str) -> None:
    answer = await on_host(link, python, "modules", *AGENT_MODULES)
    missing: dict[str, str] = answer["missing"]
    if missing:
        why = "; ".join(f"{name} ({one_line(reason, 120)})" for name, reason in missing.items())
        raise DeployError(
            f"the agent's packages are not all there in {one_line(answer['prefix'])} on {link.endpoint.host}: {why}. "
            f"Run there: {python} -m pip install {one_line(' '.join(missing))}"
        )


async def on_host(link: Link, python: str, *command: str, data: bytes = b"") -> dict[str, Any]:
    """Run a command of ``onhost`` and return its answer."""
    source = await asyncio.to_thread(Path(onhost.__file__).read_text)
    done = await link.run((python, "-P", "-c", source, *command), data)
    # In front of it stands what the login shell's start-up files print.
    _, mark, said = done.stdout.decode(errors="replace").partition(f"\n{onhost.MARK}")
    if not mark:
        raise DeployError(await _explain(link, python, done))
    answer: dict[str, Any] = json.loads(said.partition("\n")[0])
    if "error" in answer:
        raise DeployError(f"{link.endpoint.host}: {one_line(answer['error'])}")
    return answer


async def _explain(link: Link, python: str, done: Completed) -> str:
    """Why ``onhost`` gave no answer: no such interpreter, an old one, or what it said itself."""
    version = await link.run((python, "-c", "import sys; print('version %d.%d' % sys.version_info[:2])"))
    found = [line.split()[1] for line in version.stdout.decode(errors="replace").splitlines() if line[:8] == "version "]
    host = link.endpoint.host
    if version.code != 0 or not found:
        return (
            f"{python} does not run on {host}: {_complaint(version)}. "
            "Name the interpreter of the container in the config (host, python)"
        )
    if tuple(map(int, found[-1].split("."))) < OLDEST_PYTHON:
        return f"{python} on {host} is Python {found[-1]}; the agent needs 3.11 or later (config: host, python)"
    return f"{python} on {host}: {_complaint(done)}"


def _complaint(done: Completed) -> str:
    """Why a remote command failed: the error in its JSON answer, else its last words."""
    said = last_line(done.stdout)
    try:
        answer = msgspec.json.decode(said, type=dict[str, Any])
        if answer.get("error"):
            return one_line(str(answer["error"]))
    except msgspec.MsgspecError:
        pass
    return last_line(done.stderr) or said or f"exit code {done.code}"
