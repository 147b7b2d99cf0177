"""Waiting for what a screen shows, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.app import App
from textual.pilot import Pilot

from console import clock
from console.tui.app import Deck
from tests.tui.scripted import ScriptedSession
from tests.view import scenario


def shown(app: App[int]) -> list[str]:
    """The rows of the terminal as text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips(app.size)[:height]
    return ["".join(segment.text for segment in strip)[:width] for strip in lines]


async def until(pilot: Pilot[int], holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Let the app work until ``holds``; what the screen shows stands in the failure."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "\n" + "\n".join(shown(pilot.app))
        await pilot.pause(0.02)


async def until_shown(pilot: Pilot[int], text: str) -> None:
    """Let the app work until ``text`` stands on one row of the screen."""
    await until(pilot, lambda: any(text in row for row in shown(pilot.app)))


def deck(
    session: ScriptedSession | None = None, *, light: bool = False, read_only: bool = False
) -> tuple[Deck, ScriptedSession]:
    """A console on a scripted session, at hour 31 of the real run unless told otherwise."""
    session = session or ScriptedSession(scenario.live(clock.now()))
    return Deck(session, light=light, read_only=read_only), session
