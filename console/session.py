"""A console's session with one host: follows the agent, folds what it says into snapshots, and passes actions on."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, TypeVar

from console import clock
from console.controls import ControlError, JobAction, UnknownOutcome
from console.link.errors import AgentError, DeployError, LinkError, LinkRefused, OutcomeUnknown
from console.view import Gap, LinkView, Message, Refresh, Snapshot, fold
from pipeline.protocol import STALE_S, ActionReply, ActionRequest, History, JobDetail, LogHits, LogPage, StreamLine

if TYPE_CHECKING:  # they speak SSH and HTTP, which the screen does not wait for
    from console.client import AgentClient
    from console.link.reconnect import Link, LinkStatus

T = TypeVar("T")
LinkFactory = Callable[[], "AbstractAsyncContextManager[Link]"]
"""Opens the link; the session keeps it open while it runs."""

ClientFactory = Callable[["Link"], Awaitable["AgentClient"]]
"""Sees to it that an agent runs on the host of a live link, and returns a client for it, not entered yet."""

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0
REOPEN_AFTER: Final = 3
"""Failures in a row over a live link after which the agent itself is looked after again."""

HISTORY_EVERY_S: Final = 60.0
HISTORY_POINTS: Final = 600
PLOTTED: Final = ("generate", "tok_s")  # stage and figure of the overview's plot


class Session:
    """Answers ``console.controls.Controls``. It connects when it runs."""

    def __init__(
        self, open_link: LinkFactory, client_factory: ClientFactory, *, run: str, host_label: str, by: str
    ) -> None:
        self._open_link = open_link
        self._link: Link | None = None
        self._client_factory = client_factory
        self._by = by
        self._client: AgentClient | None = None
        self._trouble = ""
        self._anew = True  # the state is to be read before the stream is followed
        self._broken = False  # the trouble stays until the operator asks again
        self._again = asyncio.Event()
        self._on_snapshot: Callable[[Snapshot], None] = lambda _: None
        self.snapshot = Snapshot(run=run, host_label=host_label, link=LinkView("connecting", clock.now()))

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Follow the agent and call ``on_snapshot`` after every change, until cancelled."""
        self._on_snapshot = on_snapshot
        async with self._open_link() as link:
            self._link = link
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_link(link))
                tasks.create_task(self._keep_following(link))
                tasks.create_task(self._keep_history())

    def retry(self, accept_host_key: str = "") -> None:
        """Connect again now. ``accept_host_key``: see ``LinkView``."""
        self._again.set()
        if self._link is not None:
            self._link.retry(accept_host_key)

    # --- Following ---

    def _fold(self, message: Message) -> None:
        self.snapshot = fold(self.snapshot, message, clock.now())
        self._on_snapshot(self.snapshot)

    async def _watch_link(self, link: Link) -> None:
        async with contextlib.aclosing(link.changes()) as changes:
            async for status in changes:
                self._show_link(status)

    def _show_link(self, status: LinkStatus) -> None:
        """The link as the panes show it; trouble with the agent over a live link is shown in its place."""
        if status.state == "live" and self._broken:
            self._fold(LinkView("refused", status.since, self._trouble))
        else:
            self._fold(LinkView(status.state, status.since, status.detail or self._trouble, status.host_key))

    def _set_trouble(self, text: str, *, broken: bool = False) -> None:
        if (text, broken) != (self._trouble, self._broken):
            self._trouble, self._broken = text, broken
            if self._link is not None:
                self._show_link(self._link.status)

    async def _keep_following(self, link: Link) -> None:
        async with contextlib.AsyncExitStack() as stack:
            failures = 0
            while True:
                self._again.clear()
                heard = self.snapshot.received
                try:
                    await link.connected()
                    if self._client is None:
                        self._client = await stack.enter_async_context(await self._client_factory(link))
                    await self._follow(self._client)
                except LinkRefused:
                    await _leave_refused(link)
                    continue
                except DeployError as error:
                    self._set_trouble(str(error), broken=True)
                    await self._again.wait()
                    self._set_trouble("")
                    continue
                except LinkError as error:
                    # An agent that says no to our number of the last event has another journal.
                    self._anew = self._anew or isinstance(error, AgentError)
                    failures = 1 if self.snapshot.received != heard else failures + 1
                    self._set_trouble(str(error))
                if failures >= REOPEN_AFTER and link.status.state == "live":
                    failures, self._client = 0, None
                    await stack.aclose()
                with contextlib.suppress(TimeoutError):
                    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**failures)
                    await asyncio.wait_for(self._again.wait(), pause)

    async def _follow(self, client: AgentClient) -> None:
        """Read the stream until it breaks. After a break it goes on from the last event seen, so none is missed."""
        if self._anew:
            self._fold(await client.state())
            self._anew = False
        journal = self.snapshot.agent.journal if self.snapshot.agent else ""
        known, quiet_since, missed = self.snapshot.seq, self.snapshot.received, 0
        async with contextlib.aclosing(client.stream(self.snapshot.seq, journal)) as stream:
            async for line in stream:
                torn = self._torn(line)
                if line.pruned is not None:
                    missed += max(0, line.pruned.before - 1 - self.snapshot.seq)
                self._fold(line)
                self._set_trouble("")
                if line.beat is not None and quiet_since is not None:  # it comes after the events that were missed
                    quiet_s, quiet_since = clock.now() - quiet_since, None
                    if quiet_s > STALE_S or missed:
                        self._fold(Gap(line.beat.at, quiet_s, self.snapshot.seq - known - missed, missed))
                if torn:
                    self._fold(await client.state())
                elif line.pruned is not None or (line.event is not None and line.event.kind in ("plan", "agent")):
                    self._fold(Refresh(await client.state()))

    def _torn(self, line: StreamLine) -> bool:
        """Whether ``line`` says that events are missing, or that the journal is a new one."""
        if line.event is not None:
            return line.event.seq > self.snapshot.seq + 1
        return line.beat is not None and line.beat.seq < self.snapshot.seq

    async def _keep_history(self) -> None:
        """Now and then the whole run's curve and the agent's own state, which events do not carry."""
        while True:
            if self._client is None or self.snapshot.plan is None:
                await asyncio.sleep(FIRST_PAUSE_S)
                continue
            stage, figure = PLOTTED
            with contextlib.suppress(ControlError):
                for spec in self.snapshot.plan.jobs:
                    if spec.stage == stage:
                        self._fold(await self.history(spec.name, figure, HISTORY_POINTS))
                self._fold(Refresh(await self._ask(lambda client: client.state())))
            await asyncio.sleep(HISTORY_EVERY_S)

    # --- What the operator asks for ---

    def _request(self, reason: str) -> ActionRequest:
        return ActionRequest(by=self._by, request=uuid.uuid4().hex, reason=reason)

    async def _ask(self, call: Callable[[AgentClient], Awaitable[T]]) -> T:
        if self._client is None:
            raise ControlError(self._trouble or self.snapshot.link.detail or "not connected yet")
        try:
            return await call(self._client)
        except LinkError as error:
            raise ControlError(str(error)) from None

    async def _change(
        self, call: Callable[[AgentClient, ActionRequest], Awaitable[ActionReply]], reason: str = ""
    ) -> ActionReply:
        request = self._request(reason)

        async def send(client: AgentClient) -> ActionReply:
            try:
                return await call(client, request)
            except OutcomeUnknown as error:
                raise UnknownOutcome(str(error), lambda: self._outcome(request)) from None

        return await self._ask(send)

    async def _outcome(self, request: ActionRequest) -> ActionReply:
        """Ask over the next link that works what became of a request."""

        async def ask(client: AgentClient) -> ActionReply:
            try:
                return await client.withdraw(request)
            except AgentError as error:  # one that is older than this question
                return ActionReply(False, f"still not known, the job's state tells: {error}")

        while True:
            with contextlib.suppress(ControlError):
                if self.snapshot.link.state == "live":
                    return await self._ask(ask)
            await asyncio.sleep(FIRST_PAUSE_S)

    async def act(self, action: JobAction, job: str) -> ActionReply:
        return await self._change(lambda client, request: client.action(job, action, request))

    async def waive(self, job: str, reason: str) -> ActionReply:
        return await self._change(lambda client, request: client.action(job, "waive", request), reason)

    async def restart_crashed(self) -> ActionReply:
        return await self._change(lambda client, request: client.restart_crashed(request))

    async def detail(self, job: str) -> JobDetail:
        return await self._ask(lambda client: client.detail(job))

    async def log(self, job: str, attempt: int, offset: int, limit: int) -> LogPage:
        return await self._ask(lambda client: client.log(job, attempt, offset, limit))

    async def search(self, job: str, attempt: int, text: str, offset: int, limit: int) -> LogHits:
        return await self._ask(lambda client: client.search(job, attempt, text, offset, limit))

    async def history(self, job: str, figure: str, points: int) -> History:
        return await self._ask(lambda client: client.history(job, figure, points))


def operator() -> str:
    """Who asks, for the event log: user and machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


async def _leave_refused(link: Link) -> None:
    async with contextlib.aclosing(link.changes()) as changes:
        async for status in changes:
            if status.state != "refused":
                return
