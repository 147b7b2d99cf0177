"""The table of jobs. Only changed cells are updated; column widths follow the pane, never the content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable
from textual.widgets.data_table import RowDoesNotExist

from console.tui.palette import GLYPHS, TONES, colours
from console.view import format as fmt
from console.view.jobs import JobRow
from console.view.text import cells, cut
from pipeline.protocol import JobState

RENDERED_KEPT: Final = 10_000
"""Cells; a table of 200 jobs has 2,200."""

Paint = Callable[[str], Style]


@dataclass(frozen=True)
class Column:
    """One column. ``least`` is the width of the pane from which on it is shown; ``width`` 0 takes what is left."""

    key: str
    head: str
    width: int
    cell: Callable[[JobRow], tuple[str, str]]  # text and the name of its colour
    least: int = 0
    right: bool = True


def _memory(row: JobRow) -> tuple[str, str]:
    return (fmt.size(row.memory), "") if row.memory is not None else ("", "")


def _done(row: JobRow) -> tuple[str, str]:
    if row.service:
        return "", ""
    share = "" if row.share is None else fmt.percent(row.share)
    return share, "good" if row.state is JobState.DONE else "faint" if row.before else ""


def _rate(row: JobRow) -> tuple[str, str]:
    return (f"{fmt.short_count(row.rate) if row.rate >= 10 else fmt.number(row.rate)}/s", "") if row.rate else ("", "")


def _why(row: JobRow) -> tuple[str, str]:
    if row.waived and row.crashed:
        return f"waived: {row.waived} · {row.why}", "warn"
    return row.why, "bad" if row.crashed else "warn" if TONES[row.state] == "warn" else "label"


COLUMNS: Final = (
    Column("glyph", "", 2, lambda row: (GLYPHS[row.state], TONES[row.state]), right=False),
    Column("job", "job", 16, lambda row: (row.name, "bad" if row.failure else ""), right=False),
    Column("state", "state", 10, lambda row: (row.state, TONES[row.state]), right=False),
    Column("why", "why", 0, _why, right=False),
    Column("up", "time", 7, lambda row: (fmt.short_duration(row.up_s) if row.up_s is not None else "", "")),
    Column("restarts", "↻", 4, lambda row: (str(row.restarts) if row.restarts else "", "warn"), least=96),
    Column("cpu", "cpu", 9, lambda row: ("" if row.cpu_percent is None else f"{row.cpu_percent:,.0f} %", ""), least=96),
    Column("mem", "mem", 8, _memory),
    Column("rate", "rate", 9, _rate, least=120),
    Column("done", "done", 7, _done),
    Column("eta", "eta", 15, lambda row: (fmt.eta(row.eta) if row.eta else "", ""), least=96),
)


class JobsTable(DataTable[Text]):
    """Rows keyed by job name, in the order given. ``selected`` is the job under the cursor."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False)
        self._rows: tuple[JobRow, ...] = ()
        self._shown: tuple[Column, ...] = ()
        self._widths: dict[str, int] = {}
        self._drawn: dict[tuple[str, str], tuple[str, str]] = {}
        self._dark = True
        self._rendered: dict[object, list[list[Segment]]] = {}

    @property
    def selected(self) -> JobRow | None:
        """The job under the cursor; None where the table is empty."""
        return self._rows[self.cursor_row] if 0 <= self.cursor_row < len(self._rows) else None

    def show(self, rows: Sequence[JobRow]) -> None:
        """Draw ``rows``. The cursor stays on its job when rows come or go."""
        rows = tuple(rows)
        dark = self.app.current_theme.dark
        if not self._shown or dark != self._dark or [r.name for r in rows] != [r.name for r in self._rows]:
            self._dark = dark
            self._rebuild(rows)
            return
        self._rows = rows
        for index, row in enumerate(rows):
            for number, column in enumerate(self._shown):
                drawn = column.cell(row)
                if self._drawn.get((row.name, column.key)) != drawn:
                    self._drawn[row.name, column.key] = drawn
                    self.update_cell_at(Coordinate(index, number), self._cell(column, drawn), update_width=False)

    def select(self, name: str) -> bool:
        """Put the cursor on a job; False where the table does not show it."""
        try:
            self.move_cursor(row=self.get_row_index(name))
        except RowDoesNotExist:
            return False
        return True

    def on_resize(self) -> None:
        if self.size.width:
            self._rebuild(self._rows)

    def _rebuild(self, rows: tuple[JobRow, ...]) -> None:
        selected, scroll = self.selected, self.scroll_offset
        self.clear(columns=True)
        self._drawn.clear()
        self._rendered.clear()
        self._rows = rows
        self._lay_out(self.size.width - (self.scrollbar_size_vertical if len(rows) >= self.size.height else 0))
        for column in self._shown:
            head = Text(column.head, self._style("faint"), justify="right" if column.right else "left")
            self.add_column(head, key=column.key, width=self._widths[column.key])
        for row in rows:
            cells = [(column, column.cell(row)) for column in self._shown]
            self._drawn |= {(row.name, column.key): drawn for column, drawn in cells}
            self.add_row(*(self._cell(column, drawn) for column, drawn in cells), key=row.name)
        if selected is not None:
            self.scroll_to(y=scroll.y, animate=False)
            self.select(selected.name)

    def _render_cell(
        self,
        row_index: int,
        column_index: int,
        base_style: Style,
        width: int,
        cursor: bool = False,
        hover: bool = False,
    ) -> list[list[Segment]]:
        """Textual forgets all cells when one changes, and rendering is what a repaint takes: most are as they were."""
        if row_index < 0 or column_index < 0:
            return super()._render_cell(row_index, column_index, base_style, width, cursor, hover)
        drawn = self._drawn[self._rows[row_index].name, self._shown[column_index].key]
        look = (base_style, width, cursor, hover, self._show_hover_cursor, self._pseudo_class_state)
        key = (row_index, column_index, drawn, look)
        if key not in self._rendered:
            if len(self._rendered) > RENDERED_KEPT:
                self._rendered.clear()
            self._rendered[key] = super()._render_cell(row_index, column_index, base_style, width, cursor, hover)
        return self._rendered[key]

    def _lay_out(self, width: int) -> None:
        self._shown = tuple(column for column in COLUMNS if width >= column.least)
        self._widths = {column.key: column.width for column in self._shown}
        names = max((cells(row.name) for row in self._rows), default=8)
        self._widths["job"] = min(max(8, names), 24 if width >= 110 else 15) + 1
        fixed = sum(self._widths.values())
        self._widths["why"] = max(8, width - fixed)

    def _cell(self, column: Column, drawn: tuple[str, str]) -> Text:
        text, colour = drawn
        width = self._widths[column.key]
        room = width if column.right else width - 1
        return Text(
            cut(text, room), self._style(colour), justify="right" if column.right else "left", no_wrap=True, end=""
        )

    def _style(self, colour: str) -> Style:
        return Style(color=colours(self._dark)[colour]) if colour else Style()
