"""``draftdeck`` without a command: the console on the screen.

The screen comes first: what speaks SSH and HTTP is imported only once it has been painted, beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from console.config import Config, load
from console.session import Session, operator

if TYPE_CHECKING:
    from console.client import AgentClient
    from console.link.reconnect import Link


@dataclass(frozen=True)
class Host:
    """The config that names the host, and how to greet a host never seen before."""

    config: Path
    accept_new_host_key: bool = False
    read_only: bool = False


async def watch(host: Host) -> int:
    """Open the console. Returns its exit code."""
    from console.tui.app import Deck  # Textual is loaded only where there is a screen

    config = load(host.config)
    session = session_on(config, lambda: open_link(config, host), read_only=host.read_only)
    app = Deck(session, read_only=host.read_only)
    await app.run_async()
    return app.return_code or 0


def session_on(
    config: Config, open_link: Callable[[], AbstractAsyncContextManager[Link]], *, read_only: bool
) -> Session:
    """A session with the configured host; one that may change something sees to it that an agent runs."""

    async def client(live: Link) -> AgentClient:
        from console import host as hosts
        from console.client import AgentClient

        if read_only:
            place = await hosts.found(live, config)
            return AgentClient(live, place.read_only_bridge)
        place = await hosts.attended(live, config)
        return AgentClient(live, place.bridge)

    return Session(open_link, client, run=config.run.name, host_label=config.host.address, by=operator())


@contextlib.asynccontextmanager
async def open_link(config: Config, host: Host) -> AsyncIterator[Link]:
    """A link that connects in the background, as the config and the command line say."""
    await asyncio.to_thread(importlib.import_module, "console.host")
    from console.host import endpoint
    from console.link.reconnect import Link

    async with Link(endpoint(config), accept_new_host_key=host.accept_new_host_key) as link:
        yield link
