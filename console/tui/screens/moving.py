"""Keys that scroll, for screens that are one scrolling widget."""

from __future__ import annotations

from textual.widget import Widget


class Moving:
    """Mixed into a screen that says what scrolls."""

    @property
    def scroller(self) -> Widget:
        """The widget that the keys scroll."""
        raise NotImplementedError

    def action_down(self) -> None:
        self.scroller.scroll_down(animate=False)

    def action_up(self) -> None:
        self.scroller.scroll_up(animate=False)

    def action_top(self) -> None:
        self.scroller.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.scroller.scroll_end(animate=False)

    def action_page_down(self) -> None:
        self.scroller.scroll_page_down(animate=False)

    def action_page_up(self) -> None:
        self.scroller.scroll_page_up(animate=False)
