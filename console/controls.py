"""What the screens ask of the outside world. ``console.session.Session`` answers over SSH."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from console.view import Snapshot
from pipeline.protocol import ActionReply, History, JobDetail, LogHits, LogPage

JobAction = Literal["start", "stop", "restart", "restart-with-dependents", "kill"]


class ControlError(Exception):
    """An action or a fetch that did not succeed, in one line for the operator."""


class UnknownOutcome(ControlError):  # noqa: N818 - states what is
    """Not known whether it was done. ``outcome`` waits for the link and tells; what was not done by then never is."""

    def __init__(self, text: str, outcome: Callable[[], Awaitable[ActionReply]]) -> None:
        super().__init__(text)
        self.outcome = outcome


class Controls(Protocol):
    """A session with one host. Every coroutine but ``run`` raises ``ControlError``, and only that."""

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; one without data before the first word from the agent."""

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        """Connect, follow the agent and call ``on_snapshot`` after every change, until cancelled."""

    def retry(self, accept_host_key: str = "") -> None:
        """Connect again now: after a refusal, or without waiting out the pause between two attempts.

        ``accept_host_key``: ``LinkView.host_key``, where the operator takes the host for the one that is meant.
        """

    async def act(self, action: JobAction, job: str) -> ActionReply:
        """Do ``action`` to ``job``; the reply says whether it was done, and what. May raise ``UnknownOutcome``."""

    async def waive(self, job: str, reason: str) -> ActionReply:
        """Let the jobs behind a failed one go on without it."""

    async def restart_crashed(self) -> ActionReply:
        """Restart every job in one of the crashed states. May raise ``UnknownOutcome``."""

    async def detail(self, job: str) -> JobDetail:
        """Spec, status, attempts and masked environment of ``job``."""

    async def log(self, job: str, attempt: int, offset: int, limit: int) -> LogPage:
        """At most ``limit`` bytes of an attempt's log from ``offset``; a negative offset counts from the end."""

    async def search(self, job: str, attempt: int, text: str, offset: int, limit: int) -> LogHits:
        """Offsets of at most ``limit`` lines from ``offset`` on that hold ``text``; the scan may end early."""

    async def history(self, job: str, figure: str, points: int) -> History:
        """A figure over the run in at most ``points`` points."""
