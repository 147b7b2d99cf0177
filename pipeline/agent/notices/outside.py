"""The servers outside the container that the agent speaks to: their URLs, which are secrets, and trouble with them."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.agent.attempts.environment import base_environment, first_process_environment
from pipeline.agent.attempts.secret_files import MissingSecret, SecretRefused, read_secret
from pipeline.agent.board import Board
from pipeline.agent.notices.notify import Message
from pipeline.agent.notices.webhooks import Answer, BadURLError, check_url, post_for, service_of
from pipeline.agent.paths import runtime_path
from pipeline.protocol import ActionReply, NotifyFormat, NotifyTest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """The URL that a secret holds, or "" and why there is none."""

    url: str = ""
    why: str = ""


class Trouble:
    """Why something is not delivered, since when; shown to the operator, and logged when it begins and when it ends."""

    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._name = name
        self._brief = ""
        self._since = ""

    def set(self, brief: str, text: str, waiting: int = 0) -> None:
        if not self._brief:
            self._since = time.strftime("%H:%M UTC", time.gmtime())
        if brief != self._brief:
            log.warning("%s: %s", self._name, text)
        self._brief = brief
        waits = f"; {waiting} event{'s' if waiting > 1 else ''} to tell" if waiting else ""
        self._board.remarks[self._name] = f"{self._name}: {brief} since {self._since}{waits}"

    def clear(self) -> None:
        if self._brief:
            log.info("%s: works again", self._name)
        self._brief = ""
        self._board.remarks.pop(self._name, None)


class Outside:
    """Reads a URL anew for each request, so that a secret that is stored again is used at once."""

    def __init__(self, workdir: Path) -> None:
        self._runtime = runtime_path(workdir)

    async def place(self, name: str) -> Place:
        """What a secret holds now."""
        return await asyncio.to_thread(self._place, name)

    async def post(self, place: Place, wanted: NotifyFormat, message: Message) -> Answer:
        """Post a message to a webhook."""
        if not place.url:
            return Answer("broken", place.why, place.why)
        try:
            post = post_for(place.url, service_of(place.url, wanted), message)
        except BadURLError as error:
            return Answer("broken", str(error), str(error))
        return await self._send("POST", post.url, post.body)

    async def call(self, place: Place) -> Answer:
        """Call a heartbeat's URL."""
        return await self._send("GET", place.url) if place.url else Answer("broken", place.why, place.why)

    async def test(self, asked: NotifyTest) -> ActionReply:
        """Send a test message and a heartbeat now; the reply says what the servers answered."""
        wanted, said, well = asked.notify, [], True
        if wanted.webhook:
            line = f"{asked.by} asked for a test: what happens in this run is told here"
            place = await self.place(wanted.webhook)
            answer = await self.post(place, wanted.format, Message(f"{asked.run}: a test", (line,), alarm=False))
            service = f" ({service_of(place.url, wanted.format)})" if place.url else ""
            said.append(f"webhook{service}: {answer.text}")
            well = well and answer.fate == "delivered"
        if wanted.heartbeat:
            answer = await self.call(await self.place(wanted.heartbeat))
            said.append(f"heartbeat: {answer.text}")
            well = well and answer.fate == "delivered"
        if not said:
            return ActionReply(False, "neither webhook nor heartbeat is named in [notify] of the config")
        return ActionReply(well, "; ".join(said))

    def _place(self, name: str) -> Place:
        try:
            value = read_secret(self._runtime, name)
            if value is None:
                value = (first_process_environment() or {}).get(name)
            if value is None:
                raise MissingSecret(name)
            return Place(check_url(value))
        except (MissingSecret, SecretRefused, BadURLError, ValueError, OSError) as error:
            return Place(why=str(error))

    async def _send(self, method: str, url: str, body: bytes = b"") -> Answer:
        # Brings httpx, which an agent that tells nobody can do without.
        from pipeline.agent.notices.posting import send

        environment = await asyncio.to_thread(lambda: base_environment(first_process_environment() or {}))
        return await send(method, url, environment, body)
