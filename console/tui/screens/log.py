"""One attempt's log: ranges of the file are read over the link, and the search runs on the host."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Input

from console.controls import ControlError
from console.tui.keymap import Scope, Situation, bindings
from console.tui.screens.base import DeckScreen
from console.tui.screens.moving import Moving
from console.tui.widgets.bars import AttentionBar, Bar, KeyBar, StatusBar
from console.tui.widgets.logview import LogView
from console.tui.widgets.pane import Piece, fit, line
from console.view import Tone
from console.view import format as fmt
from console.view.jobs import JobRow
from console.view.logbuffer import LogBuffer
from console.view.search import Search
from console.view.text import clean

PAGE: Final = 262_144
POLL_S: Final = 0.2
IDLE_POLLS: Final = 5
"""Polls that are left out after one that brought nothing."""

HITS: Final = 500


class LogScreen(Moving, DeckScreen):
    """The log of a job. Follows its end until the operator scrolls away, and again on ``f`` or at the end."""

    SCOPE: ClassVar[Scope] = "log"
    BINDINGS: ClassVar[list[BindingType]] = bindings("log")

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self._attempt = 0
        self._buffer = LogBuffer()
        self._follow = True
        self._search: Search | None = None
        self._reading = asyncio.Lock()
        self._idle = 0
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield AttentionBar(id="attention")
        yield Bar(id="header")
        yield LogView(self._buffer, id="log")
        yield Input(placeholder="text to find in the whole log", id="search", select_on_focus=True)
        yield StatusBar(id="status")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._view.focus()
        row = self.selected
        self._open(row.attempt if row else 0)
        self.set_interval(POLL_S, self._poll)

    @property
    def _view(self) -> LogView:
        return self.query_one("#log", LogView)

    @property
    def selected(self) -> JobRow | None:
        return self.snapshot.job(self._job)

    def situation(self) -> Situation:
        return replace(super().situation(), searching=self._search is not None, following=self._follow)

    def paint(self) -> None:
        row = self.selected
        if row is not None and row.attempt > self._attempt and self._follow:
            if self._attempt:
                self.say(Tone.BUSY, f"{self._job}: attempt {row.attempt} started")
            self._open(row.attempt)
        self.tick()

    def tick(self) -> None:
        super().tick()
        header = self.query_one("#header", Bar)
        header.say(fit(self._header(), header.room))

    def _header(self) -> Content:
        row, buffer = self.selected, self._buffer
        pieces: list[Piece] = [(self._job, "bold"), (f"  {row.state}" if row else "  gone from the plan", "$label")]
        attempts = f" of {row.attempt}" if row and row.attempt > 1 else ""
        pieces.append(f"  attempt {self._attempt}{attempts}" if self._attempt else "  has not started yet")
        pieces.append(("  following" if self._follow else "  held: f follows", "$good" if self._follow else "$warn"))
        if self._search is not None:
            known = f"{fmt.count(len(self._search.hits))} hit{'' if len(self._search.hits) == 1 else 's'}"
            part = "" if self._search.next_offset is None else f" in {fmt.percent(self._search.scanned)} of it"
            pieces.append((f'  "{clean(self._search.text, 40)}": {known}{part}', "$busy"))
        if buffer.first:
            pieces.append((f"  {fmt.size(buffer.first)} of its front given back to the disk", "$label"))
        if buffer.skipped:
            pieces.append((f"  {fmt.size(buffer.skipped)} not shown, the log grew faster", "$warn"))
        if buffer.size:
            pieces.append((f"  {fmt.size(buffer.start)}–{fmt.size(buffer.end)} of {fmt.size(buffer.size)}", "$label"))
        if self._trouble:
            pieces.append((f"  {self._trouble}", "$bad"))
        return line(*pieces)

    # --- Fetching ---

    def _open(self, attempt: int) -> None:
        self._attempt = attempt
        self._search = None
        self._view.found = ""
        self._buffer = self._view.buffer = LogBuffer()
        self._idle = 0
        if attempt:
            self._fetch_end()
        else:
            self._view.take()

    def _fetch_end(self) -> None:
        self._work(self._read(-PAGE, restart=True))

    def _work(self, coroutine: Coroutine[None, None, None]) -> None:
        self.run_worker(coroutine, group="log", exit_on_error=True)

    def _poll(self) -> None:
        """Read what the log has grown by; rarely where it did not grow, and only what fits where it grew too fast."""
        if not self._attempt or not self._follow or self._reading.locked() or self.app.screen is not self:
            return
        if self._idle > 0:
            self._idle -= 1
            return
        self._work(self._read(self._buffer.end, follow=True))

    async def _read(
        self,
        offset: int,
        *,
        restart: bool = False,
        follow: bool = False,
        before: bool = False,
        go_to: int | None = None,
    ) -> None:
        """Read a piece and take it. What only continues the window is left out while another piece is on its way."""
        if self._reading.locked() and not restart:
            return
        async with self._reading:
            buffer, attempt, prepended = self._buffer, self._attempt, 0
            limit = min(PAGE, buffer.start - offset) if before else PAGE
            try:
                page = await self.controls.log(self._job, attempt, offset, limit)
                if follow and page.size - page.offset > 4 * PAGE:
                    page = await self.controls.log(self._job, attempt, -PAGE, PAGE)
            except ControlError as error:
                self._trouble = str(error)
                self._idle = IDLE_POLLS
                return
        if buffer is not self._buffer or not self.ready:
            return
        self._trouble = ""
        self._idle = 0 if page.data else IDLE_POLLS
        early = buffer.start
        if restart:
            buffer.restart(page)
        elif before:
            prepended = buffer.prepend(page)
        else:
            buffer.append(page)
        if page.data or restart:
            self._view.take(follow=self._follow and go_to is None, prepended=prepended)
        if go_to is not None and (index := buffer.line_at(max(go_to, buffer.start))) is not None:
            self._view.go_to(index)
        # Few long lines do not fill the screen: what is before them is wanted too.
        if self._view.underfull and (restart or buffer.start < early) and buffer.start > buffer.first:
            self._earlier()
        self.tick()

    @on(LogView.ReachedTop)
    def _earlier(self) -> None:
        if self._buffer.start > self._buffer.first:
            self._work(self._read(max(0, self._buffer.start - PAGE), before=True))

    @on(LogView.ReachedEnd)
    def _later(self) -> None:
        if self._buffer.end < self._buffer.size:
            self._work(self._read(self._buffer.end))

    # --- Keys ---

    def action_follow(self) -> None:
        self._follow = not self._follow
        if self._follow:
            self._fetch_end()
        self.tick()

    def action_wrap(self) -> None:
        self._view.wrap = not self._view.wrap
        self._view.take(follow=self._follow)

    def action_previous_attempt(self) -> None:
        if self._attempt <= 1:
            self.say(Tone.IDLE, f"{self._job} has no attempt before this one")
            return
        self._follow = False
        self._open(self._attempt - 1)

    def action_next_attempt(self) -> None:
        row = self.selected
        if row is None or self._attempt >= row.attempt:
            self.say(Tone.IDLE, f"{self._job} has no attempt after this one")
            return
        self._open(self._attempt + 1)

    @property
    def scroller(self) -> LogView:
        return self._view

    def action_up(self) -> None:
        self._hold()
        super().action_up()

    def action_page_up(self) -> None:
        self._hold()
        super().action_page_up()

    def action_top(self) -> None:
        self._hold()
        if self._buffer.start > self._buffer.first:
            self._work(self._read(0, restart=True, go_to=0))
        else:
            self._view.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self._follow = True
        self._fetch_end()

    def on_mouse_scroll_up(self) -> None:
        self._hold()

    def _hold(self) -> None:
        self._follow = False

    # --- Search ---

    @property
    def _input(self) -> Input:
        return self.query_one("#search", Input)

    def action_search(self) -> None:
        self._input.add_class("-open")
        self.set_focus(self._input)  # at once: the next keys may be here already

    @on(Input.Submitted, "#search")
    def _submitted(self, event: Input.Submitted) -> None:
        self._close_input()
        text = event.value
        if not text:
            return
        self._hold()
        self._view.found = text
        self._search = Search.start(text, self._view.top_offset, self._buffer.size)
        self._seek(self._view.top_offset - 1, forward=True)

    def action_next_hit(self) -> None:
        if self._search is not None:
            self._seek(self._at_hit, forward=True)

    def action_previous_hit(self) -> None:
        if self._search is not None:
            self._seek(self._at_hit, forward=False)

    def _seek(self, offset: int, *, forward: bool) -> None:
        self._hold()
        self.run_worker(self._find(offset, forward=forward), group="search", exclusive=True, exit_on_error=True)

    async def _find(self, offset: int, *, forward: bool) -> None:
        """Go to the hit next to ``offset``, scanning on the host while none is known; around the ends of the log."""
        while self._search is not None:
            search = self._search
            hit = search.after(offset) if forward else search.before(offset)
            asked = search.next_offset
            # Backwards, a nearer hit may lie in what is not scanned yet: that part comes first.
            if hit is not None and (forward or asked is None):
                return self._show_hit(hit)
            if asked is None:
                if not search.hits:
                    return self.say(Tone.WARN, f'"{search.text}" is not in this log')
                self.say(Tone.IDLE, "around the end of the log")
                return self._show_hit(search.hits[0] if forward else search.hits[-1])
            try:
                found = await self.controls.search(self._job, self._attempt, search.text, asked, HITS)
            except ControlError as error:
                return self.say(Tone.BAD, f'search for "{search.text}": {error}')
            self._search = search.found(asked, found)
            self.tick()
        return None

    def _show_hit(self, offset: int) -> None:
        self._at_hit = offset
        index = self._buffer.line_at(offset)
        if index is None:
            self._work(self._read(max(0, offset - PAGE // 2), restart=True, go_to=offset))
        else:
            self._view.go_to(index)
        self.tick()

    _at_hit = 0

    def _close_input(self) -> None:
        self._input.remove_class("-open")
        self._view.focus()

    def action_back(self) -> None:
        """Close what is open, one thing a press: the input, the search, the screen."""
        if self.focused is self._input:
            self._close_input()
        elif self._search is not None:
            self._search = None
            self._view.found = ""
            self._view.refresh()
            self.tick()
        else:
            self.dismiss()
