"""A question that is answered in words."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.tui.widgets.pane import line


class Ask(ModalScreen[str | None]):
    """Dismisses with the text on Enter, with None on Esc. An empty text is no answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "leave", "leave it")]

    def __init__(self, question: str, detail: str, placeholder: str) -> None:
        super().__init__()
        self._question, self._detail, self._placeholder = question, detail, placeholder

    def compose(self) -> ComposeResult:
        with Vertical(id="question"):
            yield Static(line((self._question, "bold")), markup=False)
            yield Static(line((self._detail, "$label")), markup=False, id="question-detail")
            yield Input(placeholder=self._placeholder, id="answer")
            yield Static(line(("⏎", "bold $busy"), " do it   ", ("esc", "bold $busy"), " leave it"), markup=False)

    def on_mount(self) -> None:
        self.query_one("#answer", Input).focus()

    @on(Input.Submitted, "#answer")
    def _answered(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)
