"""A question before work is destroyed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from console.tui.widgets.pane import line


class Confirm(ModalScreen[bool]):
    """Dismisses with True on y alone, with False on n, q or Esc: Enter out of habit destroys nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,q,escape,ctrl+c", "answer(False)", "no"),
    ]

    def __init__(self, question: str, detail: str) -> None:
        super().__init__()
        self._question, self._detail = question, detail

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(line((self._question, "bold")), markup=False)
            yield Static(line((self._detail, "$label")), markup=False, id="question-detail")
            yield Static(line(("y", "bold $busy"), " yes   ", ("n", "bold $busy"), " no"), markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
