"""Watches one model server: the readiness ladder until it answers, then its cheap figures."""

from __future__ import annotations

import time
from typing import Final

import httpx

from pipeline.protocol import Readiness, ServerSample
from pipeline.serve import ladder
from pipeline.serve.metrics import parse

FIGURES_TIMEOUT_S: Final = 10.0
DOUBTS: Final = 3
"""Readings in a row that must fail before a server that answered is asked for its health: busy is not dead."""

HEALTH_EVERY_S: Final = 60.0
"""/health makes the server generate a token, so it is asked rarely while the figures move."""


class ServerProbe:
    """``look`` again and again, one call at a time; each returns within half a minute or so."""

    def __init__(self, readiness: Readiness, *, client: httpx.AsyncClient | None = None) -> None:
        self._readiness = readiness
        self._client = client or httpx.AsyncClient(trust_env=False)
        self._rung = ladder.Rung(ladder.NO_PORT)
        self._sample = ServerSample(step=ladder.NO_PORT)
        self._failed = 0
        self._generated: int | None = None
        self._moved_at = 0.0  # when the server last showed that it works

    async def look(self) -> tuple[ServerSample, str]:
        """The newest sample, and what is wrong with the server where waiting cannot cure it."""
        if not self._rung.ready:
            self._rung = await ladder.climb(self._client, self._readiness)
            self._failed, self._moved_at = 0, time.monotonic()
            if not self._rung.ready:
                self._sample = ServerSample(step=self._step())
                return self._sample, self._rung.wrong
        await self._read()
        return self._sample, ""

    async def close(self) -> None:
        await self._client.aclose()

    def _step(self) -> str:
        return f"{self._rung.step}; {self._rung.detail}" if self._rung.detail else self._rung.step

    async def _read(self) -> None:
        base = self._readiness.url.rstrip("/")
        try:
            reply = await self._client.get(f"{base}/metrics", timeout=httpx.Timeout(FIGURES_TIMEOUT_S, connect=5.0))
        except httpx.ConnectError:
            self._rung = ladder.Rung(ladder.NO_PORT, detail="the port closed")
            self._sample = ServerSample(step=self._step())
            return
        except httpx.HTTPError as error:
            await self._doubt(base, f"/metrics: {type(error).__name__}")
            return
        if reply.status_code == 404:
            self._keep(ServerSample(step=f"{ladder.ANSWERS}; no /metrics", ready=True))
        elif reply.status_code != 200:
            await self._doubt(base, f"/metrics answers {reply.status_code}")
            return
        else:
            figures = parse(reply.text)
            if figures.generated_tokens != self._generated or figures.tok_s:
                self._generated, self._moved_at = figures.generated_tokens, time.monotonic()
            self._keep(
                ServerSample(
                    step=ladder.ANSWERS,
                    ready=True,
                    running=figures.running,
                    queued=figures.queued,
                    kv_use=figures.kv_use,
                    tok_s=figures.tok_s,
                    accept_length=figures.accept_length,
                    generated_tokens=figures.generated_tokens,
                    max_running=self._rung.max_running,
                )
            )
        # Figures can still be served while nothing is generated any more.
        if time.monotonic() - self._moved_at > HEALTH_EVERY_S:
            self._moved_at = time.monotonic()
            await self._check_health(base, "nothing was generated")

    def _keep(self, sample: ServerSample) -> None:
        self._sample, self._failed = sample, 0

    async def _doubt(self, base: str, why: str) -> None:
        self._failed += 1
        # Figures of an earlier reading would look like figures of now.
        self._sample = ServerSample(step=f"{ladder.ANSWERS}; {why}", ready=True, max_running=self._rung.max_running)
        if self._failed >= DOUBTS:
            await self._check_health(base, why)

    async def _check_health(self, base: str, why: str) -> None:
        timeout = max(self._readiness.request_timeout_s, ladder.HEALTH_TIMEOUT_S)
        try:
            reply = await self._client.get(f"{base}/health", timeout=httpx.Timeout(timeout, connect=5.0))
            answer = "" if reply.status_code == 200 else f"/health answers {reply.status_code}"
        except httpx.HTTPError as error:
            answer = f"/health: {type(error).__name__}"
        if answer:
            self._rung = ladder.Rung(ladder.PORT, detail=f"{why}, {answer}")
            self._sample = ServerSample(step=self._step())
