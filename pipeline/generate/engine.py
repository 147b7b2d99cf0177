"""SGLang's native /generate: token ids in, token ids out."""

from __future__ import annotations

import contextlib
import math
import re
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import httpx
import msgspec

from pipeline.generate.exchange import message_of, most_bytes, post, transport
from pipeline.generate.outcome import GARBLED, Generated, Load, RefusedError, TokenId, TroubleError
from pipeline.generate.settings import Sampling

HEALTH_TIMEOUT_S: Final = 25.0
"""SGLang's own health check waits up to 20 s for a sign of life."""

SPEED_S: Final = 30.0
"""The server counts its tokens every 40 steps: up to ten seconds where a step takes long."""

SAMPLE: Final = re.compile(
    r"^sglang[:_](num_running_reqs|gen_throughput|realtime_tokens_total)(\{[^\n]*\})?[ \t]+(\S+)", re.MULTILINE
)

PRESSURE: Final = re.compile(
    r"^sglang[:_](num_queue_reqs|token_usage|num_retracted_reqs)(?:\{[^\n]*\})?[ \t]+(\S+)", re.MULTILINE
)


class _FinishReason(msgspec.Struct):
    type: str
    message: str | None = None
    matched: int | str | None = None  # of stop: the end id, or a text


class _Meta(msgspec.Struct):
    finish_reason: _FinishReason
    prompt_tokens: int
    completion_tokens: int
    id: str | None = None  # the rid that was sent


class _Reply(msgspec.Struct):
    output_ids: list[TokenId]
    meta_info: _Meta


class SGLang:
    """One server. ``connections`` is the most requests that are ever in flight."""

    def __init__(self, url: str, *, connections: int) -> None:
        self.url = url.rstrip("/")
        self._transport = transport(connections)
        self._client = httpx.AsyncClient(transport=self._transport, trust_env=False)
        self._generate = httpx.URL(f"{self.url}/generate")
        self._decoder = msgspec.json.Decoder(_Reply)
        self._counts: deque[tuple[float, float]] = deque()  # when the server's count of tokens was read, and the count

    async def close(self) -> None:
        await self._client.aclose()

    async def generate(self, prompt_ids: list[int], sampling: Sampling, label: str) -> Generated:
        """One answer, whole. Raises RefusedError or TroubleError. The caller sets the time limit."""
        # An id that is used once: a server may still hold an earlier attempt that we gave up.
        rid = f"{label}#{uuid.uuid4().hex[:8]}"
        body = msgspec.json.encode({"input_ids": prompt_ids, "sampling_params": sampling, "rid": rid})
        content = await post(self._transport, self._generate, body, most_bytes(sampling.max_new_tokens))
        return self._read(content, len(prompt_ids), sampling.max_new_tokens, rid)

    def _read(self, content: bytes, sent: int, budget: int, rid: str) -> Generated:
        try:
            reply = self._decoder.decode(content)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise _garbled(said if (said := _error_in(content)) else str(error)) from None
        meta, count = reply.meta_info, len(reply.output_ids)
        if meta.id is not None and meta.id != rid:
            raise _garbled("it is the answer to another request")
        if meta.finish_reason.type not in ("stop", "length", "abort"):
            raise _garbled(f"finish reason {meta.finish_reason.type[:40]}")
        if meta.prompt_tokens != sent:
            raise RefusedError(
                f"the server counted {meta.prompt_tokens} prompt tokens where {sent} were sent",
                kind="the server counted other prompt tokens than were sent",
            )
        if meta.completion_tokens != count:
            raise _garbled(f"{count} output ids, {meta.completion_tokens} completion tokens")
        if count > budget:
            raise _garbled(f"{count} output ids, {budget} were asked for")
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
        async for found in self._told("/model_info", "/get_model_info"):
            if isinstance(found.get("model_path"), str):
                return str(found["model_path"])
        return None

    async def room(self) -> int | None:
        """The most requests it runs at once; None where it does not say."""
        async for found in self._told("/server_info", "/get_server_info"):
            return max_running(found)
        return None

    async def _told(self, *paths: str) -> AsyncIterator[dict[str, Any]]:
        """What it says of itself under the paths of newer and older versions."""
        for path in paths:
            try:
                reply = await self._client.get(f"{self.url}{path}", timeout=HEALTH_TIMEOUT_S)
                found: Any = reply.json() if reply.status_code == 200 else None
            except (httpx.HTTPError, aiohttp.ClientError, OSError, ValueError):
                continue
            if isinstance(found, dict):
                yield found

    async def load(self) -> Load | None:
        """How many requests run, and the speed of the last half minute; None where /metrics does not say."""
        try:
            reply = await self._client.get(f"{self.url}/metrics", timeout=httpx.Timeout(5.0))
        except (httpx.HTTPError, aiohttp.ClientError, OSError):
            return None
        if reply.status_code != 200:
            return None
        running, gauge, decoded = figures_of(reply.text)
        pressure = pressure_of(reply.text)
        if not running or not gauge or (self._counts and decoded < self._counts[-1][1]):
            self._counts.clear()  # it idles, or another process counts anew
        if not running or not gauge:
            return None
        self._counts.append((time.monotonic(), decoded))
        return Load(running, growth(self._counts, SPEED_S) or gauge, *pressure)


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


def max_running(info: dict[str, Any]) -> int | None:
    """Of /server_info: what the schedulers found to fit, else the flag, which is null unless it was given."""
    states = info.get("internal_states")
    fits = [
        most
        for state in (states if isinstance(states, list) else ())
        if isinstance(state, dict) and isinstance(most := state.get("effective_max_running_requests_per_dp"), int)
    ]
    found = sum(fits) or info.get("max_running_requests")
    return found if isinstance(found, int) and found > 0 else None


def pressure_of(text: str) -> tuple[int, float | None, int | None]:
    """Requests that wait, KV use and retracted requests; None where it is not said. Ranks: the worst of them."""
    found: dict[str, float] = {}
    for name, value in PRESSURE.findall(text):
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(value)):
                found[name] = max(found.get(name, 0.0), number)
    retracted = found.get("num_retracted_reqs")
    return (
        int(found.get("num_queue_reqs", 0.0)),
        found.get("token_usage"),
        None if retracted is None else int(retracted),
    )


def growth(counts: deque[tuple[float, float]], window_s: float) -> float:
    """Tokens a second by the counts of the last ``window_s``; older ones are dropped. 0 where they do not tell."""
    while len(counts) > 2 and counts[1][0] <= counts[-1][0] - window_s:
        counts.popleft()
    (began, first), (ended, last) = counts[0], counts[-1]
    return (last - first) / (ended - began) if last > first > 0 and ended > began else 0.0


def _garbled(why: str) -> TroubleError:
    return TroubleError(f"{GARBLED}: {why}", kind=GARBLED)


def _error_in(content: bytes) -> str:
    """What a 200 that holds an error says."""
    try:
        found: Any = msgspec.json.decode(content)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return message_of(content) if isinstance(found, dict) and "error" in found else ""
