"""The overview: everything an operator should read in two seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Grid, Vertical
from textual.events import Resize
from textual.widget import Widget
from textual.widgets import DataTable, Input

from console.tui.keymap import Situation, bindings
from console.tui.screens.base import DeckScreen
from console.tui.widgets.bars import AttentionBar, HeaderBar, KeyBar, Selection, StatusBar, Vitals
from console.tui.widgets.datasets import DatasetsPane
from console.tui.widgets.events import EventsPane
from console.tui.widgets.host import HostPane
from console.tui.widgets.inference import InferencePane
from console.tui.widgets.jobs import JobsTable
from console.tui.widgets.pane import Pane
from console.tui.widgets.server import ServerPane
from console.view import Tone
from console.view.jobs import JobRow
from pipeline.protocol import JobState

PANES = ("jobs", "host", "datasets", "inference", "server", "events")
LAYOUTS = ("compact", "normal", "wide")


def layout_for(width: int, height: int) -> str:
    """How the panes are laid out: one at a time with the vitals below, three columns, or a second screen."""
    if width >= 170 and height >= 44:
        return "wide"
    return "normal" if width >= 110 and height >= 36 else "compact"


class OverviewScreen(DeckScreen):
    """See the module."""

    SCOPE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = bindings("overview")

    def __init__(self) -> None:
        super().__init__()
        self._filter = ""
        self._shown = "jobs"  # the pane that is shown where only one is
        self._zoomed = False

    def compose(self) -> ComposeResult:
        yield AttentionBar(id="attention")
        yield HeaderBar(id="header")
        with Grid(id="panes"):
            with Vertical(id="jobs", classes="box"):
                yield JobsTable(id="table")
            yield HostPane(id="host")
            yield DatasetsPane(id="datasets")
            yield InferencePane(id="inference")
            yield ServerPane(id="server")
            yield EventsPane(id="events")
        yield Vitals(id="vitals")
        yield Selection(id="selection")
        yield Input(placeholder="name, state or reason", id="filter", select_on_focus=False)
        yield StatusBar(id="status")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one("#jobs").border_title = "Jobs"
        self._table.focus()
        self._arrange()

    def on_resize(self, event: Resize) -> None:
        self._arrange(event.size.width, event.size.height)
        if self.ready:
            self.call_after_refresh(self.paint)

    # --- Drawing ---

    @property
    def _table(self) -> JobsTable:
        return self.query_one("#table", JobsTable)

    @property
    def selected(self) -> JobRow | None:
        chosen = self._table.selected
        return self.snapshot.job(chosen.name) if chosen else None

    def situation(self) -> Situation:
        return replace(super().situation(), filtered=bool(self._filter), one_pane=self.has_class("-compact"))

    def paint(self) -> None:
        snapshot = self.snapshot
        rows = [row for row in snapshot.jobs if self._passes(row)]
        self._table.show(rows)
        shown = f" {len(rows)} of {len(snapshot.jobs)}" if self._filter else ""
        self.query_one("#jobs").border_title = f"Jobs{shown}"
        for pane in self.query(Pane):
            pane.show(snapshot)
        if self.query_one("#vitals").display:
            self.query_one("#vitals", Vitals).show(snapshot)
        self.query_one("#selection", Selection).show(self.selected, self.snapshot)
        self.tick()

    def tick(self) -> None:
        super().tick()
        snapshot, now = self.snapshot, self.deck.now()
        self.query_one("#header", HeaderBar).show(snapshot, now, read_only=self.deck.read_only)

    def _passes(self, row: JobRow) -> bool:
        text = self._filter.casefold()
        return not text or any(text in part.casefold() for part in (row.name, row.state, row.why))

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        self.query_one("#selection", Selection).show(self.selected, self.snapshot)
        self.query_one("#keys", KeyBar).show(self.situation())

    @on(DataTable.RowSelected)
    def _clicked(self) -> None:
        self.action_detail()

    # --- Panes ---

    def _arrange(self, width: int = 0, height: int = 0) -> None:
        layout = layout_for(width or self.size.width, height or self.size.height)
        for name in LAYOUTS:
            self.set_class(name == layout, f"-{name}")
        one = self._zoomed or layout == "compact"
        self.set_class(one, "-one")
        for name in PANES:
            self.query_one(f"#{name}").set_class(name == self._shown, "-shown")

    def _focusable(self, name: str) -> Widget:
        return self._table if name == "jobs" else self.query_one(f"#{name}")

    def _go_to_pane(self, step: int) -> None:
        index = (PANES.index(self._focused_pane()) + step) % len(PANES)
        self._shown = PANES[index]
        self._arrange()
        self._focusable(self._shown).focus()
        self.call_after_refresh(self.paint)

    def _focused_pane(self) -> str:
        focused = self.focused
        return next((name for name in PANES if focused is self._focusable(name)), self._shown)

    def action_next_pane(self) -> None:
        self._go_to_pane(1)

    def action_previous_pane(self) -> None:
        self._go_to_pane(-1)

    def action_zoom(self) -> None:
        self._zoomed, self._shown = not self._zoomed, self._focused_pane()
        self._arrange()
        self.call_after_refresh(self.paint)

    # --- Moving ---

    def action_down(self) -> None:
        self._move(lambda: self._table.action_cursor_down(), lambda pane: pane.scroll_down(animate=False))

    def action_up(self) -> None:
        self._move(lambda: self._table.action_cursor_up(), lambda pane: pane.scroll_up(animate=False))

    def action_top(self) -> None:
        self._move(lambda: self._table.move_cursor(row=0), lambda pane: pane.scroll_home(animate=False))

    def action_bottom(self) -> None:
        last = max(0, self._table.row_count - 1)
        self._move(lambda: self._table.move_cursor(row=last), lambda pane: pane.scroll_end(animate=False))

    def action_page_down(self) -> None:
        self._move(lambda: self._table.action_page_down(), lambda pane: pane.scroll_page_down(animate=False))

    def action_page_up(self) -> None:
        self._move(lambda: self._table.action_page_up(), lambda pane: pane.scroll_page_up(animate=False))

    def _move(self, in_table: Callable[[], object], in_pane: Callable[[Pane], object]) -> None:
        focused = self.focused
        if isinstance(focused, Pane):
            in_pane(focused)
        else:
            in_table()

    def action_next_problem(self) -> None:
        zero = {row.job for row in self.snapshot.datasets if row.going_to_zero}
        bad = [row for row in self.snapshot.jobs if row.crashed or row.state is JobState.STALLED or row.name in zero]
        if not bad:
            self.say(Tone.GOOD, "no job crashed or stalled")
            return
        names = [row.name for row in bad]
        at = names.index(self.selected.name) + 1 if self.selected and self.selected.name in names else 0
        if not self._table.select(names[at % len(names)]):
            self._set_filter("")
            self._table.select(names[at % len(names)])

    # --- Filter ---

    @property
    def _input(self) -> Input:
        return self.query_one("#filter", Input)

    def action_filter(self) -> None:
        self._input.add_class("-open")
        self._input.value = self._filter
        self.set_focus(self._input)  # at once: the next keys may be here already

    @on(Input.Changed, "#filter")
    def _typed(self, event: Input.Changed) -> None:
        self._filter = event.value.strip()
        self.paint()

    @on(Input.Submitted, "#filter")
    def _entered(self) -> None:
        self._input.set_class(bool(self._filter), "-open")
        self._table.focus()
        self.paint()

    def _set_filter(self, text: str) -> None:
        self._filter = text
        with self.prevent(Input.Changed):
            self._input.value = text
        self._input.set_class(bool(text), "-open")
        self.paint()

    # --- Elsewhere ---

    def action_detail(self) -> None:
        row = self.selected
        if row is not None:
            self.deck.open_job(row.name)

    def action_back(self) -> None:
        """Close what is open, one thing a press: the filter, the zoom, another pane than the jobs."""
        if self._filter or self.focused is self._input:
            self._set_filter("")
        elif self._zoomed:
            self.action_zoom()
            return
        self._shown = "jobs"
        self._arrange()
        self._table.focus()
        self.call_after_refresh(self.paint)
