"""One HTTP request to somebody else's server: through the container's proxy, TLS verified, bounded in time and size."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx

from pipeline.agent.notices.webhooks import Answer, hidden, judge

CONNECT_S: Final = 10.0
ANSWER_S: Final = 20.0
READ: Final = 4096  # bytes of an answer that are looked at

UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


async def send(method: str, url: str, environment: Mapping[str, str], body: bytes = b"") -> Answer:
    """Make the request and say what became of it; never raises for what is outside. Redirects are not followed."""
    proxy = proxy_for(url, environment)
    try:
        context = await asyncio.to_thread(_tls, environment.get("SSL_CERT_FILE"), environment.get("SSL_CERT_DIR"))
        async with asyncio.timeout(CONNECT_S + ANSWER_S):
            answer = await _ask(method, url, body, proxy, context)
    except UNSENT as error:
        answer = Answer("later", "not reached", f"not reached: {_words(error)}")
    except (httpx.TransportError, TimeoutError) as error:
        answer = Answer("unknown", "no answer", f"no answer: {_words(error)}")
    except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        # A proxy or a certificate file that the environment names and that cannot be used.
        answer = Answer("broken", "cannot be asked", f"cannot be asked: {_words(error)}")
    return Answer(answer.fate, answer.brief, hidden(answer.text, url, proxy or ""), answer.after_s)


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for a URL, if any."""

    def named(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    parts = urlsplit(url)
    host = f".{parts.hostname}"
    for name in named("no_proxy").split(","):
        name = name.strip().lower().partition(":")[0]
        if name == "*" or (name and host.endswith("." + name.lstrip("."))):
            return None
    proxy = named(f"{parts.scheme}_proxy") or named("all_proxy")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


async def _ask(method: str, url: str, body: bytes, proxy: str | None, context: ssl.SSLContext) -> Answer:
    headers = {"User-Agent": "draftdeck"} | ({"Content-Type": "application/json"} if body else {})
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    async with (
        httpx.AsyncClient(trust_env=False, verify=context, proxy=proxy or None, timeout=timeout) as client,
        client.stream(method, url, content=body or None, headers=headers) as response,
    ):
        data = b""
        try:
            async for part in response.aiter_bytes():
                data += part
                if len(data) >= READ:
                    break
        except (httpx.TransportError, httpx.DecodingError):
            pass  # its status says enough
        return judge(response.status_code, response.headers, data[:READ], time.time())


@functools.cache
def _tls(file: str | None, folder: str | None) -> ssl.SSLContext:
    if file or folder:
        return ssl.create_default_context(cafile=file or None, capath=folder or None)
    return httpx.create_ssl_context(trust_env=False)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
