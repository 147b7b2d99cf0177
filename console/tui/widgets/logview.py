"""Lines of a log on the screen: drawn by the line, so that a window of any length costs what is visible."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.tui.palette import colours
from console.view.logbuffer import LogBuffer, LogLine

_BAD: Final = re.compile(r"\b(?:error|exception|traceback|fatal|killed|failed|out of memory|oom)\b", re.IGNORECASE)
_WARN: Final = re.compile(r"\b(?:warn(?:ing)?)\b", re.IGNORECASE)


class LogView(ScrollView, can_focus=True):
    """Draws a ``LogBuffer``. ``take`` is called after the buffer changed, however many lines that were."""

    class ReachedTop(Message):
        """The operator is at the first line that is held: earlier ones are wanted."""

    class ReachedEnd(Message):
        """The operator is at the last line that is held: later ones are wanted."""

    def __init__(self, buffer: LogBuffer, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.buffer = buffer
        self.wrap = False
        self.found = ""
        self._lines: list[LogLine] = []
        self._head = 0  # lines before the buffer's: what is said of a front that is gone
        self._rows: list[tuple[int, str]] = []  # index of the line, the part of it that is on this row
        self._first_rows: list[int] = []  # by line: its first row

    def take(self, *, follow: bool = False, prepended: int = 0) -> None:
        """Take the buffer as it is now; ``prepended`` lines at its head keep what is visible in place."""
        notice = self.buffer.notice
        self._head = 0 if notice is None else 1
        self._lines = [*([] if notice is None else [notice]), *self.buffer.lines]
        if (pending := self.buffer.pending) is not None:
            self._lines.append(pending)
        top = self.scroll_offset.y
        self._wrap()
        if prepended:
            moved = prepended + self._head
            top += self._first_rows[moved] if moved < len(self._first_rows) else 0
        if follow:
            self.scroll_end(animate=False, immediate=True, force=True)
        else:
            self.scroll_to(y=top, animate=False, immediate=True, force=True)
        self.refresh()

    def _wrap(self) -> None:
        width = max(1, self.scrollable_content_region.width)
        self._rows, self._first_rows = [], []
        widest = 0
        for index, held in enumerate(self._lines):
            self._first_rows.append(len(self._rows))
            wide = len(held.text) if held.text.isascii() else cell_len(held.text)
            widest = max(widest, wide)
            if self.wrap and wide > width:
                self._rows += [(index, part) for part in chop_cells(held.text, width)]
            else:
                self._rows.append((index, held.text))
        self.virtual_size = Size(width if self.wrap else max(width, widest), len(self._rows))

    @property
    def top_offset(self) -> int:
        """Offset in the file of the topmost visible line."""
        row = min(self.scroll_offset.y, len(self._rows) - 1)
        return self._lines[self._rows[row][0]].offset if self._rows else self.buffer.start

    @property
    def at_end(self) -> bool:
        return self.scroll_offset.y >= self.max_scroll_y

    @property
    def underfull(self) -> bool:
        """Whether there are fewer rows than the screen has."""
        return len(self._rows) < self.scrollable_content_region.height

    def go_to(self, index: int) -> None:
        """Put the line at ``index`` of the buffer a few rows below the top."""
        index += self._head
        if index < len(self._first_rows):
            self.scroll_to(y=max(0, self._first_rows[index] - 3), animate=False, immediate=True, force=True)
            self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value <= 0:
            self.post_message(self.ReachedTop())
        elif new_value > old_value and new_value >= self.max_scroll_y:
            self.post_message(self.ReachedEnd())

    def on_resize(self) -> None:
        self.take(follow=self.at_end)

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        base = self.rich_style
        if row >= len(self._rows):
            return Strip.blank(width, base)
        text = self._rows[row][1]
        named = colours(self.app.current_theme.dark)
        tone = "bad" if _BAD.search(text) else "warn" if _WARN.search(text) else ""
        style = base + Style(color=named[tone]) if tone else base
        strip = Strip(self._segments(text, style, base + Style(bgcolor=named["hit"], bold=True)))
        left = self.scroll_offset.x
        return strip.crop_extend(left, left + width, base)

    def _segments(self, text: str, style: Style, hit: Style) -> list[Segment]:
        if not self.found or self.found not in text:
            return [Segment(text, style)]
        segments = []
        for index, part in enumerate(text.split(self.found)):
            if index:
                segments.append(Segment(self.found, hit))
            segments.append(Segment(part, style))
        return segments
