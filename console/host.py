"""What the commands do with the configured host: connect, bring the pipeline there, start the agent, apply the plan."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from console.client import AgentClient
from console.config import Config
from console.link.channel import bridge_argv
from console.link.connect import Endpoint
from console.link.deploy import agent_argv, current_release, deploy, ensure_agent
from console.link.errors import DeployError, last_line
from console.link.reconnect import Link
from console.plan import build
from console.session import operator
from pipeline.protocol import ActionRequest, ApplyReply, ApplyRequest

USUAL_SSH_CONFIG = "~/.ssh/config"
CONNECT_TIMEOUT_S = 20.0
END_TIMEOUT_S = 400.0
"""Jobs have their own grace; stopping a server that answers takes minutes at the worst."""
SILENT_S = 2.0
"""Seconds after which a command that still connects says so."""


@dataclass(frozen=True)
class Place:
    """A configured host that a link reaches, with the release whose bridge is used there."""

    config: Config
    link: Link
    release: str

    @property
    def bridge(self) -> tuple[str, ...]:
        return bridge_argv(self.config.host.workdir, self.config.host.python, self.release)

    @property
    def read_only_bridge(self) -> tuple[str, ...]:
        return bridge_argv(self.config.host.workdir, self.config.host.python, self.release, read_only=True)


def request(reason: str = "") -> ActionRequest:
    """A request of this operator with a name of its own, so that sending it twice does it once."""
    return ActionRequest(by=operator(), request=uuid.uuid4().hex, reason=reason)


def endpoint(config: Config) -> Endpoint:
    """Where the config says the host is."""
    host = config.host
    return Endpoint(
        host=host.address,
        port=host.port,
        user=host.user or None,
        identity_files=tuple(Path(name) for name in host.identity_files),
        known_hosts=Path(host.known_hosts) if host.known_hosts else None,
        ssh_config=_ssh_config(host.ssh_config),
    )


def _ssh_config(name: str) -> tuple[Path, ...] | None:
    """The usual file may be missing; one that is named must be there."""
    if name == USUAL_SSH_CONFIG:
        return None
    return (Path(name).expanduser(),) if name else ()


@contextlib.asynccontextmanager
async def connected(config: Config, *, accept_new_host_key: bool = False) -> AsyncIterator[Link]:
    """A live link. Raises ``LinkRefused`` or ``LinkDown`` with one line for the operator."""
    async with Link(endpoint(config), accept_new_host_key=accept_new_host_key) as link:
        waits = asyncio.create_task(_say_that_it_waits(link, config.host.address))
        try:
            await link.connected(CONNECT_TIMEOUT_S)
        finally:
            waits.cancel()
        yield link


async def _say_that_it_waits(link: Link, address: str) -> None:
    await asyncio.sleep(SILENT_S)
    why = link.status.detail or f"connecting to {address}"
    print(f"{why}; trying for {CONNECT_TIMEOUT_S:.0f} s", file=sys.stderr, flush=True)


async def deployed(link: Link, config: Config) -> Place:
    """Bring this console's pipeline to the host and see to it that its agent runs; running jobs go on untouched."""
    host = config.host
    release = await deploy(link, host.workdir, host.python)
    await ensure_agent(link, host.workdir, host.python, release, by=operator())
    return Place(config, link, release)


async def attended(link: Link, config: Config) -> Place:
    """The host with its agent up, of the release that is there already: opening a console upgrades nothing.

    Where nothing was deployed yet, this console's pipeline is.
    """
    host = config.host
    release = await current_release(link, host.workdir, host.python)
    if not release:
        return await deployed(link, config)
    await ensure_agent(link, host.workdir, host.python, release, by=operator())
    return Place(config, link, release)


async def found(link: Link, config: Config) -> Place:
    """What runs on the host already, with nothing changed there. Raises ``DeployError`` where nothing was deployed."""
    release = await current_release(link, config.host.workdir, config.host.python)
    if not release:
        where = f"{config.host.workdir} on {config.host.address}"
        raise DeployError(f"nothing runs in {where} yet: draftdeck apply starts it")
    return Place(config, link, release)


async def apply(place: Place, *, confirm: tuple[str, ...] = (), dry_run: bool = False) -> ApplyReply:
    """Put the config's plan to the agent; ``dry_run`` only asks what it would do."""
    plan = build(place.config, place.release)
    async with AgentClient(place.link, place.bridge) as agent:
        return await agent.apply(ApplyRequest(plan, by=operator(), confirm=confirm, dry_run=dry_run))


async def end(place: Place) -> None:
    """Stop the jobs, then the agent and its keeper, and return when they are gone. Raises ``DeployError`` if not."""
    host = place.config.host
    argv = agent_argv(host.workdir, host.python, place.release, "stop", "--jobs", "--workdir", host.workdir)
    done = await place.link.run(argv, timeout_s=END_TIMEOUT_S)
    if done.code != 0:
        raise DeployError(last_line(done.stdout) or last_line(done.stderr) or f"exit code {done.code}")


async def set_secret(place: Place, name: str, value: bytes) -> None:
    """Store a secret's value on the host, in a file only its user can read. It passes through standard input alone."""
    host = place.config.host
    argv = agent_argv(host.workdir, host.python, place.release, "secret", "set", name, "--workdir", host.workdir)
    done = await place.link.run(argv, value)
    if done.code != 0:
        raise DeployError(f"the secret {name} was not stored: {last_line(done.stderr) or f'exit code {done.code}'}")
