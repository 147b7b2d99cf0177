"""SGLang's native /generate: token ids in, token ids out. What can go wrong is told apart by what cures it."""

from __future__ import annotations

import contextlib
import math
import re
import time
import uuid
from collections import deque
from typing import Any, Final

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from pipeline.generate.outcome import Generated, Load, RefusedError, TroubleError
from pipeline.generate.settings import Sampling

HEALTH_TIMEOUT_S: Final = 25.0
"""SGLang's own health check waits up to 20 s for a sign of life."""

SPEED_S: Final = 30.0
"""The server counts its tokens every 40 steps: up to ten seconds where a step takes long."""

HEADERS: Final = {"content-type": "application/json"}
TIMEOUTS: Final = {"timeout": httpx.Timeout(None, connect=10.0).as_dict()}
SAMPLE: Final = re.compile(
    r"^sglang[:_](num_running_reqs|gen_throughput|realtime_tokens_total)(\{[^\n]*\})?[ \t]+(\S+)", re.MULTILINE
)


class _FinishReason(msgspec.Struct):
    type: str
    message: str | None = None
    matched: int | str | None = None  # of stop: the end id, or a text


class _Meta(msgspec.Struct):
    finish_reason: _FinishReason
    prompt_tokens: int
    completion_tokens: int


class _Reply(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


class SGLang:
    """One server. ``connections`` is the most requests that are ever in flight."""

    def __init__(self, url: str, *, connections: int) -> None:
        self.url = url.rstrip("/")
        # Plain httpx cannot keep 150 connections busy. Idle ones are dropped before the server does so (5 s).
        limits = httpx.Limits(max_connections=connections + 8, keepalive_expiry=2.0)
        self._transport = AiohttpTransport(limits=limits, trust_env=False)
        self._client = httpx.AsyncClient(transport=self._transport, trust_env=False)
        self._generate = httpx.URL(f"{self.url}/generate")
        self._decoder = msgspec.json.Decoder(_Reply)
        self._counts: deque[tuple[float, float]] = deque()  # when the server's count of tokens was read, and the count

    async def close(self) -> None:
        await self._client.aclose()

    async def generate(self, prompt_ids: list[int], sampling: Sampling, label: str) -> Generated:
        """One answer, whole. Raises RefusedError or TroubleError. The caller sets the time limit."""
        body = msgspec.json.encode(
            {
                "input_ids": prompt_ids,
                "sampling_params": sampling,
                # An id that is used once: a server may still hold an earlier attempt that we gave up.
                "rid": f"{label}#{uuid.uuid4().hex[:8]}",
            }
        )
        try:
            # Past the client, whose cookies, redirects and URL parsing cost more than the request itself.
            request = httpx.Request("POST", self._generate, headers=HEADERS, content=body, extensions=TIMEOUTS)
            reply = await self._transport.handle_async_request(request)
            try:
                await reply.aread()
            finally:
                await reply.aclose()  # of an answer that is given up, its connection
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            raise TroubleError(f"connection: {_name(error)}", gone=True) from None
        if reply.status_code in (408, 425, 429):
            raise TroubleError(f"HTTP {reply.status_code}")
        if reply.status_code >= 500:
            raise TroubleError(f"HTTP {reply.status_code}", gone=reply.status_code in (502, 503, 504))
        if reply.status_code != 200:
            raise RefusedError(f"HTTP {reply.status_code}: {_message(reply.content)}")
        return self._read(reply.content, len(prompt_ids))

    def _read(self, content: bytes, sent: int) -> Generated:
        try:
            reply = self._decoder.decode(content)
        except msgspec.MsgspecError as error:
            raise TroubleError(f"answer not understood: {error}") from None
        meta = reply.meta_info
        if meta.finish_reason.type not in ("stop", "length"):
            raise TroubleError(f"finish reason {meta.finish_reason.type}")
        if meta.prompt_tokens != sent:
            raise RefusedError(f"the server counted {meta.prompt_tokens} prompt tokens where {sent} were sent")
        if meta.completion_tokens != len(reply.output_ids):
            raise TroubleError(f"{len(reply.output_ids)} output ids, {meta.completion_tokens} completion tokens")
        matched = meta.finish_reason.matched
        if isinstance(matched, int) and reply.output_ids[-1:] != [matched]:
            # Training would never learn to end an answer.
            raise RefusedError(f"the server ended the answer with id {matched} and left it out of output_ids")
        return Generated(reply.output_ids, meta.finish_reason.type, meta.prompt_tokens, meta.completion_tokens)

    async def healthy(self) -> bool:
        """Whether the server answers its health check; False too when it cannot be reached."""
        try:
            reply = await self._client.get(f"{self.url}/health", timeout=httpx.Timeout(HEALTH_TIMEOUT_S, connect=5.0))
        except (httpx.HTTPError, aiohttp.ClientError, OSError):
            return False
        return reply.status_code == 200

    async def model_path(self) -> str | None:
        """The path or id of the served model; None where the server does not say."""
        for path in ("/model_info", "/get_model_info"):
            try:
                reply = await self._client.get(f"{self.url}{path}", timeout=HEALTH_TIMEOUT_S)
                found: Any = reply.json() if reply.status_code == 200 else None
            except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError):
                continue
            if isinstance(found, dict) and isinstance(found.get("model_path"), str):
                return str(found["model_path"])
        return None

    async def load(self) -> Load | None:
        """How many requests run, and the speed of the last half minute; None where /metrics does not say."""
        try:
            reply = await self._client.get(f"{self.url}/metrics", timeout=httpx.Timeout(5.0))
        except (httpx.HTTPError, aiohttp.ClientError, OSError):
            return None
        if reply.status_code != 200:
            return None
        running, gauge, decoded = figures_of(reply.text)
        if not running or not gauge or (self._counts and decoded < self._counts[-1][1]):
            self._counts.clear()  # it idles, or another process counts anew
        if not running or not gauge:
            return None
        self._counts.append((time.monotonic(), decoded))
        return Load(running, growth(self._counts, SPEED_S) or gauge)


def figures_of(text: str) -> tuple[int, float, float]:
    """Requests that run, the speed by the gauge, and tokens decoded since the server's start; 0 where it is not said.

    The gauge is the speed of the last few steps: several times too high or too low around a prefill.
    """
    found = {"num_running_reqs": 0.0, "gen_throughput": 0.0, "realtime_tokens_total": 0.0}
    for name, labels, value in SAMPLE.findall(text):
        if name == "realtime_tokens_total" and 'mode="decode"' not in labels:
            continue
        with contextlib.suppress(ValueError):
            found[name] = max(found[name], float(value))
    running = found["num_running_reqs"]
    return int(running) if math.isfinite(running) else 0, found["gen_throughput"], found["realtime_tokens_total"]


def growth(counts: deque[tuple[float, float]], window_s: float) -> float:
    """Tokens a second by the counts of the last ``window_s``; older ones are dropped. 0 where they do not tell."""
    while len(counts) > 2 and counts[1][0] <= counts[-1][0] - window_s:
        counts.popleft()
    (began, first), (ended, last) = counts[0], counts[-1]
    return (last - first) / (ended - began) if last > first > 0 and ended > began else 0.0


def _message(content: bytes) -> str:
    """The error text of a 4xx body, on one line and short: it comes from outside."""
    try:
        found: Any = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        found = content[:400].decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = " ".join(str(found).split())
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:300]


def _name(error: BaseException) -> str:
    cause = error.__cause__ or error
    return type(cause).__name__
