"""Watches one model server: the readiness ladder until it answers, from then on its figures and whether it lives."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from pipeline.agent.attempts.plain_files import open_plain
from pipeline.agent.diagnosis.evidence import in_time
from pipeline.agent.health import liveness
from pipeline.agent.health.liveness import Check, Pulse
from pipeline.protocol import Checks, Readiness, ServerSample
from pipeline.serve import ladder
from pipeline.serve.metrics import ServerFigures, parse

FIGURES_TIMEOUT_S: Final = 10.0
BATCH_LINES: Final = (b"Decode batch", b"Prefill batch")
LOG_LOOK: Final = 256 * 1024


class Found(NamedTuple):
    """What one look found. ``wrong``: no waiting cures it. ``dead``: it answered once, and lives no more."""

    sample: ServerSample
    wrong: str = ""
    dead: str = ""


class ServerProbe:
    """``look`` again and again, one call at a time; each returns within a minute or so.

    ``ready_at``: when this server first answered, where an agent before this one saw it (monotonic).
    """

    def __init__(
        self, log: Path | None = None, ready_at: float | None = None, *, client: httpx.AsyncClient | None = None
    ) -> None:
        self.ready_at = ready_at
        self._log = log
        self._log_read = _size(log)
        self._client = client or httpx.AsyncClient(trust_env=False)
        self._rung = ladder.Rung(ladder.NO_PORT)
        self._pulse = Pulse(time.monotonic())
        self._checked_at = time.monotonic()
        self._adopted = ready_at is not None
        self._said = ""  # of the newest verdict

    async def look(self, readiness: Readiness, checks: Checks) -> Found:
        """The newest sample and what is wrong with the server. ``checks``: of its liveness, once it was ready."""
        sample = ServerSample(self._step())
        figures: ServerFigures | None = None
        if not self._rung.ready:
            self._rung = await ladder.climb(self._client, readiness)
            sample = ServerSample(self._step())
            if self._rung.wrong:
                return Found(sample, self._rung.wrong)
            if self._rung.ready:
                self._answered()
            elif self._adopted and self._rung.step != ladder.NO_PORT:
                # It has proved itself to an agent before this one; a busy server need not do so again.
                self._rung, self._adopted = ladder.Rung(ladder.ANSWERS, ready=True), False
        if self._rung.ready:
            sample, figures = await self._figures(readiness.url)
        if self.ready_at is None or time.monotonic() - self._checked_at < checks.interval_s:
            return Found(self._with_verdict(sample), dead=self._said)
        await self._check(readiness.url, checks, figures)
        return Found(self._with_verdict(sample), dead=self._said)

    async def close(self) -> None:
        await self._client.aclose()

    def _step(self) -> str:
        return f"{self._rung.step}; {self._rung.detail}" if self._rung.detail else self._rung.step

    def _answered(self) -> None:
        """Its canned prompt has brought tokens."""
        now = time.monotonic()
        self.ready_at = self.ready_at if self.ready_at is not None else now
        self._pulse, self._checked_at, self._said, self._adopted = Pulse(now), now, "", False

    def _with_verdict(self, sample: ServerSample) -> ServerSample:
        return replace(sample, step=self._said, ready=False) if self._said else sample

    async def _figures(self, url: str) -> tuple[ServerSample, ServerFigures | None]:
        """The sample, and the figures where they can be read. A port that has closed leads back to the ladder."""
        ready = ServerSample(step=ladder.ANSWERS, ready=True, max_running=self._rung.max_running)
        try:
            timeout = httpx.Timeout(FIGURES_TIMEOUT_S, connect=5.0)
            reply = await self._client.get(f"{url.rstrip('/')}/metrics", timeout=timeout)
        except httpx.ConnectError:
            self._rung = ladder.Rung(ladder.NO_PORT, detail="the port closed")
            return ServerSample(self._step()), None
        except httpx.HTTPError as error:
            return replace(ready, step=f"{ladder.ANSWERS}; /metrics: {type(error).__name__}"), None
        if reply.status_code != 200:
            why = "no /metrics" if reply.status_code == 404 else f"/metrics answers {reply.status_code}"
            return replace(ready, step=f"{ladder.ANSWERS}; {why}"), None
        figures = parse(reply.text)
        sample = replace(
            ready,
            running=figures.running,
            queued=figures.queued,
            kv_use=figures.kv_use,
            tok_s=figures.tok_s,
            accept_length=figures.accept_length,
            generated_tokens=figures.generated_tokens,
        )
        return sample, figures

    async def _check(self, url: str, checks: Checks, figures: ServerFigures | None) -> None:
        """Is it alive? Asks for a token only where nothing else can tell."""
        assert self.ready_at is not None
        self._checked_at = time.monotonic()
        batches = await asyncio.to_thread(self._told_of_a_batch)
        check = Check(self._checked_at, batches=batches)
        if figures is not None:
            counted = [count for count in (figures.running, figures.queued) if count is not None]
            check = replace(check, work=figures.work, busy=sum(counted) if counted else None)
        if liveness.must_be_asked(self._pulse, check):
            check = replace(check, token=await ladder.token_trouble(self._client, url, checks.timeout_s))
        self._pulse = liveness.after(self._pulse, check, checks, self.ready_at)
        self._said = await self._verdict(url, checks) if self._pulse.failed(checks) else ""

    async def _verdict(self, url: str, checks: Checks) -> str:
        """The words for a server that lives no more, with what its own health check says of it."""
        silent = time.monotonic() - self._pulse.seen_at
        try:
            reply = await self._client.get(f"{url.rstrip('/')}/health", timeout=checks.timeout_s)
            health = f"answers {reply.status_code}"
        except httpx.HTTPError as error:
            health = f"gives {type(error).__name__}"
        return f"no token for {in_time(silent)}, {self._pulse.trouble}; /health {health}"

    def _told_of_a_batch(self) -> bool:
        """Whether the log holds a line about a batch that was not there at the check before."""
        if self._log is None:
            return False
        try:
            with open_plain(self._log) as file:
                size = file.seek(0, 2)
                file.seek(max(min(self._log_read, size), size - LOG_LOOK))
                new = file.read(LOG_LOOK)
        except OSError:
            return False
        self._log_read = size
        return any(words in new for words in BATCH_LINES)


def _size(log: Path | None) -> int:
    try:
        return log.stat().st_size if log is not None else 0
    except OSError:
        return 0
