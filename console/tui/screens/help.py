"""The keys that do something where the operator is."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from console.tui.keymap import Situation, applying, bindings
from console.tui.palette import GLYPHS, TONES
from console.tui.screens.moving import Moving
from console.tui.widgets.pane import line, lines

STATE_WORDS = {
    "waiting": "a need is not met yet",
    "queued": "memory or GPUs are not free",
    "starting": "its process is not seen yet",
    "running": "works",
    "ready": "a service that answers",
    "stalled": "alive, without progress",
    "stopping": "asked to end",
    "backoff": "failed, starts again by itself",
    "done": "finished",
    "empty": "ended well with zero records",
    "failed": "ended badly",
    "stopped": "somebody stopped it",
    "lost": "its end was not seen",
}


def help_text(now: Situation) -> Content:
    """The keys of ``now``, then what the states mean."""
    keys = applying(now)
    wide = max(len(key.shown) for key in keys)
    rows = [line(("Keys here", "bold"))]
    rows += [line((f"  {key.shown:>{wide}}  ", "bold $busy"), key.help) for key in keys]
    rows += [line(""), line(("States", "bold"))]
    rows += [
        line((f"  {glyph} {state:<10}", f"${TONES[state]}"), (STATE_WORDS[state], "$label"))
        for state, glyph in GLYPHS.items()
    ]
    return lines(rows)


class HelpScreen(Moving, ModalScreen[None]):
    """Shows the help over the screen it was asked from."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("help")

    def __init__(self, now: Situation) -> None:
        super().__init__()
        self._now = now

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(help_text(self._now), markup=False)

    @property
    def scroller(self) -> VerticalScroll:
        return self.query_one("#help", VerticalScroll)

    def action_back(self) -> None:
        self.dismiss()

    def action_back_or_quit(self) -> None:
        self.dismiss()

    def action_quit_console(self) -> None:
        self.dismiss()
