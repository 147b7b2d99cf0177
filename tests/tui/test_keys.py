"""Keys reach the session, show at once what they do, and ask before work is destroyed."""

from __future__ import annotations

import pytest

from console import clock
from console.tui.keymap import KEYMAP, Scope, Situation, applying
from console.tui.screens.confirm import Confirm
from console.tui.screens.help import HelpScreen
from console.tui.screens.job import JobScreen
from console.tui.screens.log import LogScreen
from console.tui.widgets.jobs import JobsTable
from tests.tui.screen import deck, shown, until, until_shown
from tests.tui.scripted import ScriptedSession
from tests.view import scenario


def test_a_key_means_one_thing_on_a_screen() -> None:
    scopes: tuple[Scope, ...] = ("overview", "job", "log", "help")
    for scope in scopes:
        keys = [each for key in KEYMAP if scope in key.scopes for each in key.keys.split(",")]
        assert len(keys) == len(set(keys)), scope


def test_only_what_applies_is_offered() -> None:
    snapshot = scenario.live(0.0)
    ready, done = snapshot.job("serve:baseline"), snapshot.job("prep:A1")
    offered = {key.action for key in applying(Situation("overview", ready, crashed=1))}
    assert {"stop", "kill", "restart", "restart_crashed", "log"} <= offered
    assert not {"start", "retry"} & offered
    offered = {key.action for key in applying(Situation("overview", done))}
    assert {"start", "restart"} <= offered
    assert not {"stop", "kill", "restart_crashed"} & offered


@pytest.mark.parametrize(
    ("job", "key", "asked"),
    [
        ("prep:B5", "r", ("restart", "prep:B5")),
        ("prep:B5", "R", ("restart_crashed", "")),
        ("prep:A1", "s", ("start", "prep:A1")),
        ("prep:B4", "x", ("stop", "prep:B4")),
    ],
)
async def test_what_destroys_nothing_is_done_at_once(job: str, key: str, asked: tuple[str, str]) -> None:
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        app.screen.query_one(JobsTable).select(job)
        await pilot.pause()
        await pilot.press(key)
        await until(pilot, lambda: session.asked == [asked])


@pytest.mark.parametrize(("key", "action"), [("r", "restart"), ("x", "stop"), ("X", "kill")])
async def test_ending_a_healthy_job_asks(key: str, action: str) -> None:
    app, session = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        app.screen.query_one(JobsTable).select("generate")
        await pilot.pause()
        await pilot.press(key)
        await until_shown(pilot, f"{action} generate?")
        await pilot.press("n")
        await until_shown(pilot, "generate left alone")
        assert session.asked == []
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("enter")
        assert isinstance(app.screen, Confirm)
        assert session.asked == []
        await pilot.press("y")
        await until(pilot, lambda: session.asked == [(action, "generate")])


async def test_a_restart_with_all_behind_it_names_them_and_asks() -> None:
    app, session = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        app.screen.query_one(JobsTable).select("serve:baseline")
        await pilot.pause()
        await pilot.press("ctrl+r")
        await until_shown(pilot, "restart serve:baseline and all behind it?")
        await until_shown(pilot, "With it, for they are behind it: generate")
        assert not any("merge" in row for row in shown(app) if "behind it" in row)
        await pilot.press("y")
        await until(pilot, lambda: session.asked == [("restart-with-dependents", "serve:baseline")])


async def test_a_failed_job_is_waived_with_a_reason() -> None:
    app, session = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("W")
        await until_shown(pilot, "prep:A1 is done: only a job that failed can be waived")
        app.screen.query_one(JobsTable).select("prep:B5")
        await pilot.pause()
        await pilot.press("W")
        await until_shown(pilot, "go on without prep:B5?")
        await until_shown(pilot, "Without it go on: generate, merge")
        await pilot.press("enter")
        await pilot.pause()
        assert session.asked == []
        await pilot.press("escape")
        await until_shown(pilot, "prep:B5 left alone")
        await pilot.press("W")
        await until_shown(pilot, "go on without prep:B5?")
        await pilot.press(*"gated", "enter")
        await until(pilot, lambda: session.asked == [("waive: gated", "prep:B5")])
        await until_shown(pilot, "others go on without prep:B5")


async def test_an_action_shows_at_once_and_then_how_it_went() -> None:
    app, session = deck()
    session.hold.clear()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "r")
        await until_shown(pilot, "● restarting prep:B5 …")
        session.hold.set()
        await until_shown(pilot, "✓ restarting prep:B5: prep:B5: restart accepted")


async def test_an_answer_that_only_repeats_the_action_is_said_once() -> None:
    app, session = deck()
    session.answer = "restarting prep:B5"
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "r")
        await until_shown(pilot, "✓ restarting prep:B5")
        assert not any("restarting prep:B5:" in row for row in shown(app))


async def test_an_action_that_fails_says_so_on_any_screen() -> None:
    app, session = deck()
    session.refuse = "the link is down: no answer from [gpu-3]"
    session.hold.clear()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "r", "l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        session.hold.set()
        await until_shown(pilot, "✗ restarting prep:B5: the link is down: no answer from [gpu-3]")


async def test_a_key_that_does_nothing_here_says_why() -> None:
    app, session = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("x")
        await until_shown(pilot, "prep:A1 is done: nothing to stop")
        assert session.asked == []


async def test_nothing_crashed_nothing_restarted() -> None:
    app, session = deck(ScriptedSession(scenario.all_well(clock.now())))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("R")
        await until_shown(pilot, "nothing crashed")
        assert session.asked == []


async def test_help_shows_the_keys_of_this_place() -> None:
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("?")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await until_shown(pilot, "restart every job that crashed")
        assert not any("connect to the host again" in row for row in shown(app))
        await pilot.press("escape", "l")
        await until(pilot, lambda: isinstance(app.screen, LogScreen))
        await pilot.press("?")
        await until_shown(pilot, "search the whole log, on the host")
        assert not any("restart every job that crashed" in row for row in shown(app))


async def test_there_and_back() -> None:
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        overview = app.screen
        for key, screen in (("enter", JobScreen), ("d", JobScreen), ("l", LogScreen)):
            await pilot.press(key)
            await until(pilot, lambda screen=screen: isinstance(app.screen, screen))  # type: ignore[misc]
            await pilot.press("escape" if key != "d" else "q")
            await until(pilot, lambda: app.screen is overview)


async def test_keys_on_the_bottom_line_can_be_clicked() -> None:
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "R all crashed")
        at = shown(app)[-1].index("R all crashed")
        await pilot.click(offset=(at + 3, 39))
        await until(pilot, lambda: session.asked == [("restart_crashed", "")])


async def test_quitting_says_that_jobs_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert app.return_code == 0
    assert "2 jobs go on at gpu-3; open the console again at any time" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["r", "R", "s", "x", "X"])
async def test_who_only_watches_is_offered_nothing_that_changes(key: str) -> None:
    app, session = deck(read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "read-only")
        assert "restart" not in shown(app)[-1]
        await pilot.press("n", key)
        await until_shown(pilot, "this console is read-only")
        assert session.asked == []
        await pilot.press("?")
        await until_shown(pilot, "the log of the selected job")
        assert not any("restart every job" in row for row in shown(app))
