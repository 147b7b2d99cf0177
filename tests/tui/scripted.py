"""A session that follows a script instead of a host: real protocol objects, recorded actions, a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from console.controls import ControlError, JobAction
from console.view import Message, Snapshot, fold
from pipeline.protocol import ActionReply, Attempt, History, JobDetail, LogHits, LogPage
from tests.view import scenario


class ScriptedSession:
    """Answers ``console.controls.Controls`` from what a test puts into it."""

    def __init__(self, snapshot: Snapshot, log: bytes = b"") -> None:
        self.snapshot = snapshot
        self.log_bytes = log
        self.earlier_log = b""
        self.given_back = 0
        self.asked: list[tuple[str, str]] = []
        self.pages: list[tuple[int, int]] = []
        self.refuse = ""
        self.answer = ""
        self.attempts: tuple[Attempt, ...] = ()
        self.hold = asyncio.Event()
        self.hold.set()
        self.hold_pages = asyncio.Event()
        self.hold_pages.set()
        self._on_snapshot: Callable[[Snapshot], None] | None = None

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        self._on_snapshot = on_snapshot
        on_snapshot(self.snapshot)
        await asyncio.Event().wait()

    def tell(self, message: Message, now: float) -> None:
        """Fold ``message`` and hand the snapshot on, as the real session does."""
        self.snapshot = fold(self.snapshot, message, now)
        if self._on_snapshot is not None:
            self._on_snapshot(self.snapshot)

    def retry(self, accept_host_key: str = "") -> None:
        self.asked.append(("retry", accept_host_key))

    async def act(self, action: JobAction, job: str) -> ActionReply:
        self.asked.append((action, job))
        await self.hold.wait()
        if self.refuse:
            raise ControlError(self.refuse)
        return ActionReply(True, self.answer or f"{job}: {action} accepted")

    async def waive(self, job: str, reason: str) -> ActionReply:
        self.asked.append((f"waive: {reason}", job))
        return ActionReply(True, f"others go on without {job}")

    async def restart_crashed(self) -> ActionReply:
        self.asked.append(("restart_crashed", ""))
        return ActionReply(True, "all asked to start")

    async def detail(self, job: str) -> JobDetail:
        if self.refuse:
            raise ControlError(self.refuse)
        detail = scenario.detail_of(job)
        return replace(detail, attempts=self.attempts) if self.attempts else detail

    async def log(self, job: str, attempt: int, offset: int, limit: int) -> LogPage:
        assert self.snapshot.job(job) is not None
        self.pages.append((offset, limit))
        await self.hold_pages.wait()
        data = self.earlier_log if attempt == 1 and self.earlier_log else self.log_bytes
        start = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        start = max(start, min(self.given_back, len(data)))
        return LogPage(attempt, start, len(data), data[start : start + limit], self.given_back)

    async def search(self, job: str, attempt: int, text: str, offset: int, limit: int) -> LogHits:
        assert self.snapshot.job(job) is not None
        found, at = [], 0
        for line in self.log_bytes.splitlines(keepends=True):
            if at >= offset and text.encode() in line:
                found.append(at)
            at += len(line)
        whole = len(found) <= limit
        return LogHits(attempt, tuple(found[:limit]), at if whole else found[limit], at)

    async def history(self, job: str, figure: str, points: int) -> History:
        history = scenario.curve(job)
        scale = 7e7 if figure == "memory" else 0.1
        return History(job, figure, history.at[:points], tuple(value * scale for value in history.values[:points]))
