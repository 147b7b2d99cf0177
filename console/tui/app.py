"""The console as a Textual application: it takes snapshots from a session and gives them to the screen on top."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from typing import Final

from rich.text import Text
from textual.app import App
from textual.screen import Screen

from console import clock
from console.controls import Controls
from console.tui.keymap import Situation
from console.tui.palette import DARK, LIGHT
from console.tui.screens.base import DeckScreen
from console.tui.screens.help import HelpScreen
from console.tui.screens.job import JobScreen
from console.tui.screens.log import LogScreen
from console.tui.screens.overview import OverviewScreen
from console.view import Snapshot, Tone
from console.view.text import clean
from pipeline.protocol import STALE_S

PAINT_EVERY_S: Final = 0.25
PAINT_AHEAD_S: Final = 0.5
"""So much may be painted ahead of that pace: what happens right after a beat is shown at once."""

MOMENT_S: Final = 0.05
SAID_FOR_S: Final = 12.0
TERMINAL_CHECK_S: Final = 0.3
LEAVE_WITHIN_S: Final = 0.8


class Deck(App[int]):
    """The console. ``run`` returns when the operator leaves; jobs go on."""

    CSS_PATH = "styles.tcss"
    ENABLE_COMMAND_PALETTE = False
    TITLE = "draftdeck"

    def __init__(self, controls: Controls, *, light: bool = False, read_only: bool = False) -> None:
        super().__init__()
        self.controls = controls
        self.read_only = read_only
        self.snapshot = controls.snapshot
        self._light = light
        self._painted_until = 0.0  # the time that the paints so far would take at their pace
        self._paint_due = False
        self._said: tuple[Tone, str] | None = None
        self._said_at = 0.0

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return dict(DARK.variables)

    def get_default_screen(self) -> Screen[None]:
        return OverviewScreen()

    def on_mount(self) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = LIGHT.name if self._light else DARK.name
        self.set_interval(1.0, self._tick)
        self._growing_stale = self.set_interval(STALE_S + MOMENT_S, self._tick)
        # The first picture comes before the first import of what connects.
        self.call_after_refresh(self._connect)
        self._watch_terminal()

    def _connect(self) -> None:
        self.run_worker(self.controls.run(self._take), name="session", exit_on_error=True)

    def now(self) -> float:
        """Seconds on the clock that snapshots are aged by."""
        return clock.now()

    # --- Snapshots ---

    def _take(self, snapshot: Snapshot) -> None:
        """Keep the newest snapshot and paint soon: at once where little was painted, else four times a second."""
        if snapshot.received != self.snapshot.received:
            self._growing_stale.reset()
        self.snapshot = snapshot
        if self._paint_due:
            return
        self._paint_due = True
        wait = self._painted_until - PAINT_AHEAD_S - self.now()
        if wait <= 0:
            self.call_next(self._paint)
        else:
            self.set_timer(wait, self._paint)

    def _paint(self) -> None:
        self._paint_due = False
        self._painted_until = max(self._painted_until, self.now()) + PAINT_EVERY_S
        screen = self._front
        if screen is not None and screen.ready:
            with self.batch_update():
                screen.paint()

    def _tick(self) -> None:
        screen = self._front
        if screen is not None and screen.ready:
            screen.tick()

    @property
    def _front(self) -> DeckScreen | None:
        """The topmost of our screens, which a question or the help may cover."""
        return next((each for each in reversed(self.screen_stack) if isinstance(each, DeckScreen)), None)

    # --- What was just done ---

    def say(self, tone: Tone, text: str) -> None:
        """Show one line on what was done; it stands for a while, a failure twice as long."""
        self._said, self._said_at = (tone, text), self.now()
        self._tick()

    def said(self) -> tuple[Tone, str] | None:
        """The newest such line while it stands."""
        if self._said is None:
            return None
        stands = SAID_FOR_S * (2 if self._said[0] is Tone.BAD else 1)
        return self._said if self.now() - self._said_at < stands else None

    # --- Going places ---

    def open_job(self, name: str) -> None:
        self.push_screen(JobScreen(name))

    def open_log(self, name: str) -> None:
        self.push_screen(LogScreen(name))

    def open_help(self, now: Situation) -> None:
        self.push_screen(HelpScreen(now))

    def switch_theme(self) -> None:
        """From dark to light and back."""
        self.theme = DARK.name if self.theme == LIGHT.name else LIGHT.name
        self.call_after_refresh(self._paint)

    def leave(self) -> None:
        """End the console, and say that the jobs go on."""
        live = sum(row.live for row in self.snapshot.jobs)
        label = clean(self.snapshot.host_label, 80)
        jobs = "1 job goes on" if live == 1 else f"{live} jobs go on"
        going = f"{jobs} at {label}" if live else f"nothing runs at {label}"
        self.exit(0, message=Text(f"{going}; open the console again at any time"))

    # --- A terminal that is gone ---

    def _watch_terminal(self) -> None:
        """Leave within a second when the terminal goes away, also where nohup made SIGHUP ignored."""
        if self.is_headless or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            loop.add_signal_handler(number, self._terminal_gone, 128 + number)
        self.set_interval(TERMINAL_CHECK_S, self._check_terminal)

    def _check_terminal(self) -> None:
        try:
            poll = select.poll()
            poll.register(sys.__stdin__.fileno() if sys.__stdin__ else 0, 0)
            gone = any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
        except (OSError, ValueError):
            gone = True
        if gone:
            self._terminal_gone(128 + signal.SIGHUP)

    def _terminal_gone(self, code: int) -> None:
        # Textual restores the terminal on its way out, which can block on one that nobody reads any more.
        last_resort = threading.Timer(LEAVE_WITHIN_S, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
        self.exit(code, return_code=code)
