"""Connects, asks the host what it is like, and hands the answers to be judged. Nothing is changed on either side."""

from __future__ import annotations

import asyncio
import io
import json
import time
import zipfile
from dataclasses import asdict
from typing import Any

import msgspec

from console import host as hosts
from console.client import AgentClient
from console.config import Config
from console.doctor import judge, modules
from console.doctor.findings import SSH, Finding
from console.link import onhost
from console.link.channel import bridge_argv
from console.link.deploy import installed_package, on_host
from console.link.errors import DeployError, LinkError
from console.link.reconnect import Link
from console.plan import build
from pipeline.protocol import LIVE, Survey, SurveyQuestion


async def examine(config: Config, *, accept_new_host_key: bool = False) -> list[Finding]:
    """Every line, in the order in which things depend on each other; what cannot be looked at is left out."""
    found: list[Finding] = []
    try:
        async with hosts.connected(config, accept_new_host_key=accept_new_host_key) as link:
            found.append(_login(link))
            await _look(link, config, found)
    except LinkError as error:
        found.append(Finding("wrong", SSH, str(error)))
    return found


def _login(link: Link) -> Finding:
    ssh = link.require_live()
    address, port, *_ = ssh.get_extra_info("peername")
    key = ssh.get_server_host_key()
    shown = f", host key {key.get_algorithm()} {key.get_fingerprint()} as known" if key is not None else ""
    return Finding("ok", SSH, f"{ssh.get_extra_info('username')}@{address}:{port}{shown}")


async def _look(link: Link, config: Config, found: list[Finding]) -> None:
    python = config.host.python
    try:
        groups = modules.groups(config)
        installed = await _versions(link, python, tuple(one for group in groups.values() for one in group))
        found.append(Finding("ok", "python", f"{python} is {installed['python']} in {installed['prefix']}"))
        found += [modules.judge(who, group, installed["found"], python) for who, group in groups.items()]
    except DeployError as error:
        found.append(Finding("wrong", "python", str(error)))
        return  # all else is asked with it
    await _look_at_engine(link, config, found)
    try:
        before = time.time()
        survey = await _survey(link, config)
        ahead_s = survey.at - (before + time.time()) / 2
    except DeployError as error:
        found.append(Finding("wrong", "survey", str(error)))
        return
    live: frozenset[str] = frozenset()
    if survey.agent.pid is not None and survey.agent.deployed:
        try:
            live = await _live_jobs(link, config, survey.agent.release)
        except LinkError as error:
            found.append(Finding("wrong", "agent", f"runs, but does not answer: {error}", "see agent.log"))
    found += judge.judge(config, build(config, survey.agent.release), survey, live, ahead_s)


async def _look_at_engine(link: Link, config: Config, found: list[Finding]) -> None:
    python = config.serve.python or config.host.python
    needed = modules.ENGINES[config.serve.engine]
    try:
        installed = await _versions(link, python, needed)
        found.append(modules.judge("serve", needed, installed["found"], python))
    except DeployError as error:
        found.append(Finding("wrong", "modules, serve", str(error), "set serve.python in the config"))


async def _versions(link: Link, python: str, needed: tuple[modules.Module, ...]) -> dict[str, Any]:
    names = dict.fromkeys(f"{module.name}={module.distribution}" for module in needed)
    return await on_host(link, python, "versions", *names)


async def _survey(link: Link, config: Config) -> Survey:
    question = SurveyQuestion(
        config.host.workdir, judge.secret_names(config), judge.model_paths(config), judge.addresses(config)
    )
    archive = await asyncio.to_thread(_agents_code)
    answer = await on_host(
        link, config.host.python, "ask", "pipeline.agent.survey", json.dumps(asdict(question)), data=archive
    )
    return msgspec.convert(answer, Survey)


def _agents_code() -> bytes:
    """The agent's modules and what they share with the console, as a zip archive."""
    files = onhost.release_files(installed_package())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            if name.endswith(".py") and (name.count("/") == 0 or name.startswith("agent/")):
                archive.writestr(f"pipeline/{name}", content)
    return buffer.getvalue()


async def _live_jobs(link: Link, config: Config, release: str) -> frozenset[str]:
    bridge = bridge_argv(config.host.workdir, config.host.python, release, read_only=True)
    async with AgentClient(link, bridge) as agent:
        return frozenset(name for name, job in (await agent.state()).jobs.items() if job.state in LIVE)
