"""What every pane is: a titled box that draws a snapshot and repaints only when what it draws has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from console.view import Snapshot

Piece = str | tuple[str, str] | Content
"""Text, or text with a style: the name of a theme colour as "$good", or "bold"."""


def line(*pieces: Piece) -> Content:
    """One line of a pane. Text is never markup."""
    return Content.assemble(*pieces)


def lines(rows: Iterable[Content]) -> Content:
    """Lines one under the other."""
    return Content("\n").join(rows)


def fit(content: Content, width: int) -> Content:
    """``content`` in at most ``width`` cells, with an ellipsis where it is cut."""
    return content.truncate(max(1, width), ellipsis=True)


def joined(pieces: Sequence[Piece], between: str = " · ") -> list[Piece]:
    """Pieces with a faint separator between them."""
    out: list[Piece] = []
    for piece in pieces:
        if out:
            out.append((between, "$faint"))
        out.append(piece)
    return out


def flow(pieces: Sequence[Piece], width: int, indent: str = "") -> list[Content]:
    """Pieces with separators, on as few lines of at most ``width`` cells as they fit on."""
    rows: list[list[Piece]] = []
    for piece in pieces:
        if not rows or line(indent, *joined([*rows[-1], piece])).cell_length > width:
            rows.append([])
        rows[-1].append(piece)
    return [line(indent, *joined(row)) for row in rows]


def hanging(head: Content, body: Content, width: int) -> list[Content]:
    """``body`` beside ``head``, its further lines under its first."""
    first, *rest = body.wrap(max(8, width - head.cell_length)) or [line("")]
    return [line(head, first), *(line(" " * head.cell_length, row) for row in rest)]


class Pane(VerticalScroll):
    """A pane of the overview. ``draw`` is called with the size of the inside, which may be small."""

    TITLE = ""
    FOCUS_ON_CLICK = True

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._body = Static(markup=False)
        self._drawn: Content | None = None
        self._snapshot: Snapshot | None = None
        self._summary = ""
        self.border_title = Content(self.TITLE)

    def compose(self) -> ComposeResult:
        yield self._body

    def draw(self, snapshot: Snapshot, room: Size) -> Sequence[Content]:
        """The lines of the inside; what is wider than the room is cut."""
        raise NotImplementedError

    def summary(self, snapshot: Snapshot) -> str:
        """A few words beside the title; none by default."""
        del snapshot
        return ""

    def show(self, snapshot: Snapshot) -> None:
        """Draw ``snapshot`` if the pane is on the screen, and repaint if that looks different."""
        self._snapshot = snapshot
        if not self.display or not self.size.width:
            return
        summary = self.summary(snapshot)
        if summary != self._summary:
            self._summary = summary
            self.border_title = line(self.TITLE, (f" {summary}" if summary else "", "$label"))
        room = self.scrollable_content_region.size
        drawn = lines(fit(row, room.width) for row in self.draw(snapshot, room))
        if self._drawn is not None and self._drawn.is_same(drawn):
            return
        taller = self._drawn is None or self._drawn.plain.count("\n") != drawn.plain.count("\n")
        self._drawn = drawn
        self._body.update(drawn, layout=taller)

    def on_resize(self) -> None:
        if self._snapshot is not None:
            self.show(self._snapshot)
