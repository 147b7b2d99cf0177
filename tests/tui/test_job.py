"""The screen of one job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.content import Content

from console.tui.widgets.bars import AttentionBar, Bar
from console.tui.widgets.jobs import JobsTable
from pipeline.protocol import Attempt
from tests.tui.screen import deck, shown, until, until_shown


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
async def test_what_happened_stands_first(size: tuple[int, int]) -> None:
    app, session = deck()
    session.log_bytes = b"[rank0] start\n10 %\r\x1b[31m100 %\x1b[0m\n"
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "enter")
        await until_shown(pilot, "What happened")
        screen = "\n".join(shown(app))
        assert "No row was kept: 113,200 of 114,000 have no user turn" in screen
        assert "evidence  roles seen: human, gpt" in screen
        assert "Set shape = " in screen


async def test_everything_else_is_below() -> None:
    app, session = deck()
    session.log_bytes = b"[rank0] start\n10 %\r\x1b[31m100 %\x1b[0m\n"
    async with app.run_test(size=(120, 60)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "enter")
        await until_shown(pilot, "--note 'two words'")
        await until_shown(pilot, "[rank0] start")
        screen = "\n".join(shown(app))
        for text in ("signal 9", "killed for memory", "HF_TOKEN=***", "  100 %", "jobs/prep:B5/2", "memory", "peak"):
            assert text in screen
        assert "10 %\r" not in screen


async def test_a_fetch_that_fails_is_said_and_the_rest_is_shown() -> None:
    app, session = deck()
    session.refuse = "the link is down"
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "enter")
        await until_shown(pilot, "not fetched: the link is down")
        assert any("What happened" in row for row in shown(app))
        session.refuse = ""
        await until_shown(pilot, "HF_TOKEN=***")


async def test_a_restart_from_here() -> None:
    app, session = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "enter")
        await until_shown(pilot, "What happened")
        await pilot.press("r")
        await until(pilot, lambda: session.asked == [("restart", "prep:B5")])


async def test_the_attempt_that_runs_has_its_figures() -> None:
    app, session = deck()
    row = session.snapshot.job("serve:baseline")
    assert row is not None and row.live and row.log_bytes == 612_000_000
    session.attempts = (Attempt(row.attempt, "release", row.started_at),)  # as the journal has it until its end
    async with app.run_test(size=(120, 60)) as pilot:
        await until_shown(pilot, "prep:A1")
        app.screen.query_one(JobsTable).select("serve:baseline")
        await pilot.press("enter")
        await until_shown(pilot, "Attempts")
        rows = shown(app)
        first = rows[next(at for at, text in enumerate(rows) if text.strip() == "Attempts") + 2]
        assert "ready" in first and "28 h" in first and "612 MB" in first, first


async def test_nothing_is_ever_drawn_for_a_screen_that_is_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    say = Bar.say

    def noted(bar: Bar, content: Content) -> None:
        if isinstance(bar, AttentionBar):
            drawn.append(content.cell_length)
        say(bar, content)

    monkeypatch.setattr(Bar, "say", noted)
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("enter")
        await until_shown(pilot, "Attempts")
    assert drawn and min(drawn) > 100, drawn


async def test_the_screen_behind_is_drawn_anew_when_it_comes_to_the_front() -> None:
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        behind = app.screen
        await pilot.press("enter")
        await until_shown(pilot, "Attempts")
        session.snapshot = replace(session.snapshot, run="another name")
        app.snapshot = session.snapshot
        app.pop_screen()
        await until(pilot, lambda: app.screen is behind)
        await pilot.pause()
        assert "another name" in "\n".join(shown(app))
