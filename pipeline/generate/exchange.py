"""One POST to a model server: a bounded body, or what went wrong, told apart by what cures it."""

from __future__ import annotations

import email.utils
import math
import re
import time
from typing import Any, Final

import aiohttp
import httpx
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from httpx_aiohttp import AiohttpTransport

from pipeline.generate.outcome import CUT, GARBLED, HUGE, UNREACHED, RefusedError, TroubleError

HEADERS: Final = {"content-type": "application/json", "accept-encoding": "identity"}
TIMEOUTS: Final = {"timeout": httpx.Timeout(None, connect=10.0).as_dict()}
ERROR_BYTES: Final = 64 << 10  # of an error's body; the rest of a longer one is not read
BODY_BYTES: Final = 256 << 10
TOKEN_BYTES: Final = 256
"""An answer's body may take ``BODY_BYTES`` and so much for every token it may have: an id, and its text at the most."""

WAIT_MOST_S: Final = 600.0  # of Retry-After

OF_THE_PROMPT: Final = frozenset({400, 413, 414, 422})
"""The server says that the request itself is wrong. Any other 3xx or 4xx is about the server, its address or a key."""


def transport(connections: int) -> AiohttpTransport:
    """``connections`` is the most requests that are ever in flight."""
    # Plain httpx cannot keep 150 connections busy. Idle ones are dropped before the server does so (5 s).
    return AiohttpTransport(limits=httpx.Limits(max_connections=connections + 8, keepalive_expiry=2.0), trust_env=False)


def most_bytes(max_new_tokens: int) -> int:
    """The longest body an answer of so many tokens can have."""
    return BODY_BYTES + TOKEN_BYTES * max_new_tokens


async def post(transport: AiohttpTransport, url: httpx.URL, body: bytes, most: int) -> bytes:
    """The body of a 200, at most ``most`` bytes. Raises RefusedError, TroubleError. The caller sets the time limit."""
    # Past a client, whose cookies, redirects and URL parsing cost more than the request itself.
    request = httpx.Request("POST", url, headers=HEADERS, content=body, extensions=TIMEOUTS)
    try:
        reply = await transport.handle_async_request(request)
        fine = reply.status_code == 200
        try:
            content, whole = await _read(reply, most if fine else ERROR_BYTES)
        finally:
            await reply.aclose()  # of an answer that is given up, its connection
    except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError) as error:
        raise _trouble(error) from None
    if not fine:
        raise _status(reply.status_code, content, reply.headers.get("retry-after", ""))
    if not whole:
        raise TroubleError(f"{HUGE}: more than {most:,} bytes", kind=HUGE)
    return content


async def _read(reply: httpx.Response, most: int) -> tuple[bytes, bool]:
    """What there is, at most ``most`` bytes, and whether that is all. What is left unread costs the connection."""
    parts: list[bytes] = []
    size = 0
    async for part in reply.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > most:
            return b"".join(parts)[:most], False
    return b"".join(parts), True


def _trouble(error: BaseException) -> TroubleError:
    cause = error.__cause__ or error  # the transport's own names are coarser
    name = type(cause).__name__
    if isinstance(cause, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return TroubleError(f"{UNREACHED}: {name}", kind=UNREACHED, gone=True)
    if isinstance(cause, HttpProcessingError | aiohttp.ClientResponseError | ValueError):  # what came is not HTTP
        return TroubleError(f"{GARBLED}: {name}", kind=GARBLED, gone=True)
    return TroubleError(f"{CUT}: {name}", kind=CUT, gone=True)


def _status(status: int, content: bytes, retry_after: str) -> RefusedError | TroubleError:
    kind = f"HTTP {status}"
    message = message_of(content)
    reason = f"{kind}: {message}" if message else kind
    if status in OF_THE_PROMPT:
        return RefusedError(reason, kind=re.sub(r"\d+", "…", reason).replace("HTTP …", kind, 1))
    wait_s = seconds_of(retry_after)
    busy = status == 429
    return TroubleError(reason, kind=kind, gone=status in (502, 503, 504), busy=busy, wait_s=wait_s)


def seconds_of(retry_after: str) -> float:
    """A Retry-After header, seconds or a date, as seconds from now; 0 where there is none or it says nothing."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), WAIT_MOST_S) if math.isfinite(seconds) else 0.0


def message_of(content: bytes) -> str:
    """The error text of a body, on one line and short: it comes from outside."""
    try:
        found: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        found = content[:400].decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = " ".join(str(found).split()) if found or found == 0 else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:300]
