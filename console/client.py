"""Typed calls to the agent, over the link. One method a route; see ``pipeline.protocol`` for what travels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Literal, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from console.link.channel import LINK_HEADER, REFUSED, AgentChannel
from console.link.errors import AgentError, LinkDown, LinkError, OutcomeUnknown, one_line
from console.link.reconnect import Link
from pipeline.protocol import (
    BEAT_S,
    PROTOCOL,
    ActionReply,
    ActionRequest,
    ApplyReply,
    ApplyRequest,
    History,
    JobDetail,
    LogHits,
    LogPage,
    NotifyTest,
    Problem,
    State,
    StreamLine,
)

T = TypeVar("T")

SILENCE_S: Final = 3 * BEAT_S + 1.0
"""An event stream that says nothing for so long is taken for dead."""

RESOLVE_S: Final = 30.0
"""How long a change whose fate is unknown is sent again before it is reported as unknown."""

OUTCOME_S: Final = 60.0
"""How long a command then waits for a connection that tells what became of it."""

LONGEST_LINE: Final = 16 << 20
REFUSALS: Final = 10
"""How often a request that the SSH server opens no session for is tried."""

_PAUSE_S: Final = 0.3

Action = Literal["start", "stop", "restart", "restart-with-dependents", "kill", "waive"]


class AgentClient:
    """Use as an async context manager. ``bridge`` comes from ``console.link.channel.bridge_argv``.

    Every method raises ``AgentError`` where the agent refused and ``LinkDown`` where the wire failed. A change (action,
    upgrade, …) that the wire lost is sent again as it was, which the agent recognises, until its fate is known; after
    ``RESOLVE_S`` that is given up with ``OutcomeUnknown``: nobody wants a restart an hour late.
    """

    def __init__(self, link: Link, bridge: Sequence[str]) -> None:
        self._link = link
        self._channel = AgentChannel(link, bridge)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        self._http = self._channel.http()
        self._streams = self._channel.http()  # of its own: the stream would take the connection that waits for a key
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        await self._streams.aclose()
        await self._channel.__aexit__()

    async def state(self, *, any_protocol: bool = False) -> State:
        """Everything at once. ``any_protocol``: also from an agent that is only to make way for another."""
        state = await self._read("/v1/state", State)
        if state.agent.protocol != PROTOCOL and not any_protocol:
            raise AgentError(
                f"the agent (release {state.agent.release}) speaks protocol {state.agent.protocol}, "
                f"this console {PROTOCOL}: draftdeck apply brings the agent to this release, jobs go on; "
                "or use the console it came with"
            )
        return state

    async def detail(self, name: str) -> JobDetail:
        return await self._read(_job(name), JobDetail)

    async def log(self, name: str, attempt: int, offset: int, limit: int) -> LogPage:
        """A piece of a job's log; a negative ``offset`` counts from the end."""
        return await self._read(f"{_job(name)}/log", LogPage, attempt=attempt, offset=offset, limit=limit)

    async def search(self, name: str, attempt: int, text: str, offset: int = 0, limit: int = 100) -> LogHits:
        return await self._read(
            f"{_job(name)}/log/search", LogHits, attempt=attempt, text=text, offset=offset, limit=limit
        )

    async def history(self, job: str, figure: str, points: int) -> History:
        return await self._read("/v1/history", History, job=job, figure=figure, points=points)

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """A plan is sent once, as another console's may be there by then: ``OutcomeUnknown`` where the wire fails."""
        self._link.require_live()
        try:
            return await self._send("PUT", "/v1/plan", msgspec.json.encode(request), ApplyReply, {})
        except LinkDown as down:
            text = f"not known whether the plan was applied: {down}; apply again, it does what is still to be done"
            raise OutcomeUnknown(text) from None

    async def action(self, name: str, action: Action, request: ActionRequest) -> ActionReply:
        return await self._change("POST", f"{_job(name)}/{action}", request, ActionReply)

    async def restart_crashed(self, request: ActionRequest) -> ActionReply:
        return await self._change("POST", "/v1/restart-crashed", request, ActionReply)

    async def notify_test(self, request: NotifyTest) -> ActionReply:
        """Send a test message now. The reply says what the servers answered."""
        return await self._change("POST", "/v1/notify/test", request, ActionReply)

    async def withdraw(self, request: ActionRequest) -> ActionReply:
        """What became of a request that ended in ``OutcomeUnknown``; if nothing did, nothing will."""
        return await self._change("POST", "/v1/withdraw", request, ActionReply)

    async def outcome(self, request: ActionRequest) -> ActionReply:
        """``withdraw`` over the next connection that works. ``OutcomeUnknown`` where none does within ``OUTCOME_S``."""
        deadline = time.monotonic() + OUTCOME_S
        while True:
            try:
                await self._link.connected(deadline - time.monotonic())
                return await self.withdraw(request)
            except LinkDown as down:
                if time.monotonic() >= deadline:
                    raise OutcomeUnknown(f"still not known whether it was done: {down}") from None
            await asyncio.sleep(_PAUSE_S)

    async def upgrade(self, release: str, request: ActionRequest) -> ActionReply:
        return await self._change("POST", f"/v1/upgrade?release={quote(release)}", request, ActionReply)

    async def shutdown(self, request: ActionRequest, *, stop_jobs: bool = False) -> ActionReply:
        """End agent and keeper. The jobs go on, unless ``stop_jobs``."""
        return await self._change("POST", "/v1/shutdown" + ("?jobs=stop" if stop_jobs else ""), request, ActionReply)

    async def stream(self, since: int, journal: str = "") -> AsyncGenerator[StreamLine, None]:
        """Events after number ``since``, then new ones as they come, with beats in between. Never ends by itself.

        Raises ``LinkDown`` when the wire fails, the agent ends or nothing comes for ``SILENCE_S``; ask again with the
        number of the last event seen and nothing is missed. ``AgentError`` where there is another journal by now.
        """
        parameters: dict[str, str | int] = {"since": since, "journal": journal}
        begun = time.monotonic()
        timeout = httpx.Timeout(SILENCE_S, connect=10.0)
        decoder = msgspec.json.Decoder(StreamLine)
        try:
            async with self._streams.stream("GET", "/v1/events", params=parameters, timeout=timeout) as response:
                if response.is_error:
                    await response.aread()
                    raise _refusal(response)
                torn = bytearray()
                async for data in response.aiter_bytes():
                    torn += data
                    # Not httpx's own line reader: that one also splits at characters that JSON strings may hold.
                    *lines, rest = torn.split(b"\n")
                    torn = rest
                    if len(torn) > LONGEST_LINE:
                        raise AgentError("the agent sent a line without end: its release does not fit this console")
                    for line in lines:
                        if line:
                            yield _decoded(decoder, bytes(line), "/v1/events")
        except httpx.TransportError as error:
            raise self._down(error, begun) from None
        raise LinkDown(self._channel.failure_since(begun) or "the agent ended the event stream")

    async def _read(self, path: str, kind: type[T], **parameters: str | int) -> T:
        """GET. A connection that the other side had closed while it was idle is worth a second try."""
        try:
            return await self._send("GET", path, None, kind, parameters)
        except LinkDown:
            if self._link.status.state != "live":
                raise
        return await self._send("GET", path, None, kind, parameters)

    async def _change(self, method: str, path: str, request: ActionRequest | NotifyTest, kind: type[T]) -> T:
        deadline = time.monotonic() + RESOLVE_S
        body = msgspec.json.encode(request)
        self._link.require_live()  # what was never sent needs no resolving
        while True:
            try:
                return await self._send(method, path, body, kind, {})
            except LinkDown as down:
                left = deadline - time.monotonic()
                if left <= _PAUSE_S:
                    raise OutcomeUnknown(f"not known whether it was done: {down}") from None
                await asyncio.sleep(_PAUSE_S)
                try:
                    await self._link.connected(left)
                except LinkError as still:
                    raise OutcomeUnknown(f"not known whether it was done: {still}") from None

    async def _send(
        self, method: str, path: str, body: bytes | None, kind: type[T], parameters: dict[str, str | int]
    ) -> T:
        begun = time.monotonic()
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            for _ in range(REFUSALS):
                async with self._link.sessions.requests.place():
                    if self._http.is_closed:  # perhaps while this waited for its place
                        raise LinkDown("this conversation with the agent was given up; a new one is being opened")
                    response = await self._http.request(
                        method, path, content=body, params=parameters or None, headers=headers
                    )
                if response.headers.get(LINK_HEADER) != REFUSED:
                    break
                await asyncio.sleep(_PAUSE_S)  # now another request's session serves this one too
        except httpx.TransportError as error:
            raise self._down(error, begun) from None
        if response.is_error:
            raise _refusal(response)
        return _decoded(msgspec.json.Decoder(kind), response.content, path)

    def _down(self, error: httpx.TransportError, begun: float) -> LinkDown:
        status = self._link.status
        if status.state != "live":
            return LinkDown(status.detail or "the link is not up yet")
        if isinstance(error, httpx.PoolTimeout):
            return LinkDown("too many calls to the agent at once")
        if isinstance(error, httpx.TimeoutException):
            return LinkDown("the agent does not answer")
        return LinkDown(self._channel.failure_since(begun) or f"the agent broke off: {one_line(str(error))}")


def _job(name: str) -> str:
    return f"/v1/jobs/{quote(name, safe=':')}"


def _refusal(response: httpx.Response) -> LinkError:
    """What an answer that is not 2xx means."""
    try:
        text = one_line(msgspec.json.decode(response.content, type=Problem).error)
    except msgspec.MsgspecError:
        text = f"the agent answered {response.status_code}: {one_line(response.text, 200)}"
    return LinkDown(text) if LINK_HEADER in response.headers else AgentError(text)


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, path: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise AgentError(f"the agent's answer to {path} is not understood: {one_line(str(error))}") from None
