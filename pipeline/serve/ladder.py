"""Is this the planned server, and does it answer? Walked rung by rung; each proves more than the one before.

A server that is up but is the wrong one (another model, another speculative algorithm, a draft of which nothing is
accepted) never becomes the right one by waiting, so that is told apart from "not yet".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import httpx

from pipeline.protocol import Readiness

NO_PORT: Final = "waits for the port"
PORT: Final = "port open"
HEALTHY: Final = "health 200"
MODEL: Final = "model ok"
ANSWERS: Final = "answers"

HEALTH_TIMEOUT_S: Final = 25.0
"""SGLang's own health check waits up to 20 s for a sign of life; a busy server must not be taken for a dead one."""

MIN_ACCEPT_LENGTH: Final = 1.05
"""1.0 is a draft of which nothing is ever accepted."""

CANNED: Final = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25"
"""Text rather than ids: any draft of the right wiring gets some of a count right, whatever its vocabulary."""


@dataclass(frozen=True)
class Rung:
    """How far the server got. ``wrong`` names a mismatch that no waiting cures; ``info`` is its /server_info."""

    step: str
    ready: bool = False
    wrong: str = ""
    detail: str = ""  # why the next rung was not reached
    max_running: int | None = None


class _NotYetError(Exception):
    """The next rung is not reached; the text says why."""


async def climb(client: httpx.AsyncClient, readiness: Readiness) -> Rung:
    """Walk the ladder once from the bottom; never raises for what a server does."""
    step = NO_PORT
    base = readiness.url.rstrip("/")
    timeout = readiness.checks.timeout_s
    try:
        # Any answer, 503 included, proves that the port is open.
        health = await _request(client, "GET", f"{base}/health", max(timeout, HEALTH_TIMEOUT_S))
        step = PORT
        if health.status_code != 200:
            raise _NotYetError(f"/health answers {health.status_code}")
        step = HEALTHY
        model = await _object(client, base, ("/model_info", "/get_model_info"), timeout)
        found = str(model.get("model_path", ""))
        if found != readiness.model_path:
            return Rung(step, wrong=f"serves {found or 'a model without a path'}, the plan says {readiness.model_path}")
        info = await _object(client, base, ("/server_info", "/get_server_info"), timeout)
        wrong = _speculation_mismatch(info, readiness)
        if wrong:
            return Rung(step, wrong=wrong)
        step = MODEL
        wrong = await _answer_mismatch(client, base, readiness)
        if wrong:
            return Rung(step, wrong=wrong)
        return Rung(ANSWERS, ready=True, max_running=_max_running(info))
    except _NotYetError as error:
        return Rung(step, detail=str(error))
    except httpx.ConnectTimeout:
        return Rung(step, detail="no connection in time")
    except httpx.TimeoutException:
        # A connection that opens and then says nothing is a port that is open.
        return Rung(PORT if step == NO_PORT else step, detail="no answer in time")
    except httpx.ConnectError:
        return Rung(step)  # the step says it: nobody listens yet
    except httpx.HTTPError as error:
        return Rung(step, detail=f"{type(error).__name__}: {error}")


def _max_running(info: dict[str, Any]) -> int | None:
    """Requests that run at once: what the schedulers found to fit; the flag says it only where it was given."""
    states = info.get("internal_states")
    found = [
        limit
        for state in (states if isinstance(states, list) else ())
        if isinstance(state, dict) and isinstance(limit := state.get("effective_max_running_requests_per_dp"), int)
    ]
    flag = info.get("max_running_requests")
    return sum(found) or (flag if isinstance(flag, int) else None)


def _speculation_mismatch(info: dict[str, Any], readiness: Readiness) -> str:
    found = info.get("speculative_algorithm") or None
    planned = readiness.speculative_algorithm or None
    if found == planned:
        return ""
    return f"speculative algorithm is {found or 'off'}, the plan says {planned or 'off'}"


async def _answer_mismatch(client: httpx.AsyncClient, base: str, readiness: Readiness) -> str:
    """Ask for a few tokens. With a draft, enough of them for its accept length to mean something."""
    drafted = readiness.speculative_algorithm is not None
    body = {"text": CANNED, "sampling_params": {"temperature": 0.0, "max_new_tokens": 64 if drafted else 8}}
    meta = await _generated(client, base, max(readiness.checks.timeout_s, HEALTH_TIMEOUT_S), body)
    if not drafted:
        return ""
    least = readiness.min_accept_length if readiness.min_accept_length is not None else MIN_ACCEPT_LENGTH
    accept = meta.get("spec_accept_length")
    if isinstance(accept, int | float) and accept < least:
        return (
            f"accept length {accept:.2f} on the canned prompt, at least {least:.2f} expected: the draft is not used as "
            "it was trained (wrong algorithm, wrong aux layers, or a draft of another target)"
        )
    return ""


async def token_trouble(client: httpx.AsyncClient, url: str, timeout: float) -> str:
    """Ask a server for one token: "" when it came, else why not."""
    try:
        body = {"text": CANNED, "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}
        await _generated(client, url.rstrip("/"), timeout, body)
    except _NotYetError as error:
        return str(error)
    except httpx.HTTPError as error:
        return f"/generate: {type(error).__name__}"
    return ""


async def _generated(client: httpx.AsyncClient, base: str, timeout: float, body: dict[str, Any]) -> dict[str, Any]:
    """The ``meta_info`` of an answer that has tokens."""
    reply = await _request(client, "POST", f"{base}/generate", timeout, body)
    if reply.status_code != 200:
        raise _NotYetError(f"/generate answers {reply.status_code}")
    meta = _decode(reply, "/generate").get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    if not meta.get("completion_tokens"):
        raise _NotYetError("/generate answered without a token")
    return meta


async def _object(client: httpx.AsyncClient, base: str, paths: tuple[str, ...], timeout: float) -> dict[str, Any]:
    """The JSON object under the first of ``paths`` that exists: newer servers renamed them."""
    for path in paths:
        reply = await _request(client, "GET", base + path, timeout)
        if reply.status_code == 404:
            continue
        if reply.status_code != 200:
            raise _NotYetError(f"{path} answers {reply.status_code}")
        return _decode(reply, path)
    raise _NotYetError(f"{paths[0]} does not exist there: is this SGLang?")


async def _request(
    client: httpx.AsyncClient, method: str, url: str, timeout: float, body: dict[str, Any] | None = None
) -> httpx.Response:
    return await client.request(method, url, json=body, timeout=httpx.Timeout(timeout, connect=5.0))


def _decode(reply: httpx.Response, path: str) -> dict[str, Any]:
    try:
        value = reply.json()
    except ValueError:
        raise _NotYetError(f"{path} answered something that is not JSON") from None
    if not isinstance(value, dict):
        raise _NotYetError(f"{path} answered {type(value).__name__}, expected an object")
    return value
