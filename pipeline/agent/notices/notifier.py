"""Tells who is not looking: posts what is worth a message to the webhook.

The journal is the queue. It holds how far events were told, so that after any restart nothing is told twice and nothing
is left out. Only where an agent was killed between a post and its answer is the message sent again, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import sqlite3
import time
from dataclasses import dataclass, replace
from typing import Final

from pipeline.agent.board import Board
from pipeline.agent.notices.notify import Judge, Note, Pending, compose
from pipeline.agent.notices.outside import Outside, Place, Trouble
from pipeline.agent.notices.webhooks import Answer
from pipeline.protocol import Notify

LOOK_S: Final = 1.0
BLOCK: Final = 500
REFUSALS: Final = 3
"""A message that was refused so often is let go, so that those behind it come through."""

MARK: Final = "notified"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """Seconds between posts."""

    join_s: float = 1.0  # what happens so soon after the first goes into the same message
    gap_s: float = 10.0  # between two messages
    retry_s: float = 5.0  # doubling, up to
    retry_max_s: float = 300.0
    broken_s: float = 600.0  # where trying again is in vain until somebody changes something
    recheck_s: float = 5.0  # whether somebody has


@dataclass(frozen=True)
class Told:
    """How far events were told. ``trying`` is ahead of it while a message is under way; ``lost`` notes were refused."""

    seq: int
    trying: int = 0
    lost: int = 0


def begin(board: Board, wanted: Notify) -> None:
    """A plan that names a webhook where none was named before: tell what happens from here on."""
    if wanted.webhook and not (board.plan is not None and board.plan.notify.webhook):
        board.store.set_mark(MARK, Told(board.store.seq))


class Notifier:
    """Of one agent."""

    def __init__(self, board: Board, outside: Outside, pace: Pace | None = None) -> None:
        self._board = board
        self._outside = outside
        self._pace = pace or Pace()
        self._told: Told | None = None
        self._read_to: int | None = None  # the newest event that was judged; None: not begun
        self._judge = Judge()
        self._pending = Pending()
        self._due = 0.0  # monotonic
        self._failures = 0
        self._refusals = 0
        self._broken: tuple[Notify, Place] | None = None  # with what it was in vain
        self._recheck = 0.0
        self._webhook = Trouble(board, "webhook")

    async def run(self) -> None:
        """Post what is worth it; never returns."""
        while True:
            try:
                await self._step()
            except Exception:
                log.exception("notifying failed; trying again")
            await asyncio.sleep(min(LOOK_S, self._pace.join_s))

    async def _step(self) -> None:
        wanted = self._wanted()
        if not wanted.webhook:
            self._forget()
            return
        kept = self._board.store.mark(MARK, Told)
        if self._told is None:
            self._told = kept
        elif kept is not None and kept.seq > self._told.seq:  # for a while no webhook was named
            self._pending.settle(kept.seq)
            self._told = kept
        if self._told is None:
            self._keep(Told(self._board.store.seq))
        await self._read()
        now = time.monotonic()
        if self._broken is not None and now >= self._recheck:
            self._recheck = now + self._pace.recheck_s
            if self._broken != (wanted, await self._outside.place(wanted.webhook)):
                self._due, self._broken = now, None
                self._webhook.clear()
        if self._pending and now >= self._due:
            await self._post(wanted)

    def _wanted(self) -> Notify:
        return self._board.plan.notify if self._board.plan is not None else Notify()

    def _forget(self) -> None:
        if self._told is not None:
            self._told, self._read_to, self._judge, self._pending = None, None, Judge(), Pending()
            self._broken, self._failures, self._refusals = None, 0, 0
            self._webhook.clear()

    async def _read(self) -> None:
        """Judge the events that are new."""
        assert self._told is not None
        board, waited = self._board, len(self._pending)
        if self._read_to is None:
            # What was told already is judged again, only to know what repeats itself.
            self._read_to = max(0, self._told.seq - BLOCK)
        while self._read_to < board.store.seq:
            specs, statuses = board.specs(), board.statuses()
            events = board.events_after(self._read_to, BLOCK)
            sooner = self._read_to
            for event in events:
                if event.seq > max(sooner, self._told.seq) + 1:
                    text = f"events up to number {event.seq - 1} were too old to be kept; what they said is not told"
                    self._pending.put(Note(("pruned",), event.seq, event.at, text))
                for note in self._judge.take(event, specs, statuses):
                    if event.seq > self._told.seq:
                        self._pending.put(note)
                sooner = event.seq
            self._read_to = sooner if events else board.store.seq
            await asyncio.sleep(0)
        if self._pending and not waited:
            self._due = max(self._due, time.monotonic() + self._pace.join_s)
        if not self._pending and self._read_to - self._told.seq >= BLOCK:
            self._keep(Told(self._read_to, lost=self._told.lost))

    async def _post(self, wanted: Notify) -> None:
        """Post all that waits as one message."""
        told, upto = self._told, self._read_to
        assert told is not None and upto is not None
        notes = self._pending.notes()
        message = compose(
            self._board.plan.run if self._board.plan is not None else "",
            socket.gethostname(),
            notes,
            time.time(),
            earlier=self._pending.dropped + told.lost,
            repeat=told.trying > told.seq,
        )
        self._keep(replace(told, trying=upto))
        place = await self._outside.place(wanted.webhook)
        answer = await self._outside.post(place, wanted.format, message)
        now = time.monotonic()
        if answer.fate == "refused":
            self._refusals += 1
        if answer.fate == "delivered" or self._refusals >= REFUSALS:
            lost = 0 if answer.fate == "delivered" else told.lost + self._pending.dropped + len(notes)
            self._pending.settle(upto)
            self._keep(Told(upto, lost=lost))
            self._failures = self._refusals = 0
            self._due = now + self._pace.gap_s
        else:
            self._failures += 1
            if answer.fate != "unknown":
                self._keep(told)
            self._due = now + max(self._pace.gap_s, self._delay(answer))
        self._broken = (wanted, place) if answer.fate == "broken" else None
        if answer.fate == "delivered":
            self._webhook.clear()
        else:
            self._webhook.set(answer.brief, answer.text, len(self._pending))

    def _delay(self, answer: Answer) -> float:
        if answer.after_s is not None:
            return answer.after_s
        first, most = self._pace.retry_s, self._pace.retry_max_s
        if answer.fate == "broken":
            first, most = self._pace.broken_s, 6 * self._pace.broken_s
        spread = 0.75 + 0.5 * random.random()  # noqa: S311 - spreads tries, guards nothing
        return min(most, first * 2.0 ** min(self._failures - 1, 30)) * spread

    def _keep(self, told: Told) -> None:
        """Journal how far events were told. A journal that cannot be written must not keep the message from going."""
        self._told = told
        try:
            self._board.store.set_mark(MARK, told)
        except sqlite3.Error:
            log.exception("how far events were told could not be journaled")
