"""The overview at three sizes, in every state an operator may find it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable

from console import clock
from console.tui.widgets.jobs import JobsTable
from console.view import Gap, LinkView, Snapshot, fold
from console.view.text import cells
from pipeline.protocol import Beat, Event, JobSample, JobState, JobStatus, Progress, ServerSample, StreamLine
from tests.tui.screen import deck, shown, until, until_shown
from tests.tui.scripted import ScriptedSession
from tests.view import scenario

SIZES = [(80, 24), (120, 40), (200, 50)]
HOSTILE = "CUDA [rank0] out of memory, see [/tmp/x.log] \x1b[2J\x1b]0;t\x07[bold]not bold[/bold] \u202egnp"


def on(make: Callable[[float], Snapshot]) -> ScriptedSession:
    return ScriptedSession(make(clock.now()))


def stale(now: float) -> Snapshot:
    return replace(scenario.live(now), received=now - 42)


def lost(now: float) -> Snapshot:
    return replace(scenario.live(now), received=now - 190, link=LinkView("lost", now - 185, "no answer from 10.0.0.3"))


def refused(now: float) -> Snapshot:
    return replace(scenario.started(now), link=LinkView("refused", now, "the host key has changed"))


def hostile(now: float) -> Snapshot:
    statuses, samples = scenario.running_jobs()
    statuses["prep:B5"] = replace(statuses["prep:B5"], reason=HOSTILE, diagnosis=None)
    samples["generate"] = JobSample(last_line="[/b] " + HOSTILE + "z" * 1_000_000)
    state = scenario.state_of(statuses, samples)
    events = (Event(1, scenario.AT, "state", HOSTILE + "y" * 1_000_000, "[x]"),)
    return fold(fold(scenario.started(now), LinkView("live", now), now), replace(state, events=events), now)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("light", [False, True])
async def test_the_first_lines_and_every_job_are_there(size: tuple[int, int], light: bool) -> None:
    app, _ = deck(light=light)
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "1 needs you: prep:B5 empty: 0 of 114,000")
        rows = shown(app)
        assert rows[0].rstrip().endswith("R restarts it")
        assert "kimi-k2.5-eagle3 @ gpu-3" in rows[1]
        assert "live, <3 s old" in rows[1]
        assert "29 h (24–36)" in rows[1]
        for job in scenario.PLAN.jobs[:14]:
            assert any(job.name in row for row in rows), job.name
        for figure in ("812 / 960 GB", "1.9 TB free", "828 tok/s", "150 of 150 running", "12 queued", "KV 71 %"):
            await until_shown(pilot, figure)
        assert "quit (jobs go on)" in rows[-1]
        assert "? help" in rows[-1]


@pytest.mark.parametrize("size", SIZES[1:])
async def test_larger_screens_show_datasets_events_and_the_curve(size: tuple[int, int]) -> None:
    app, _ = deck()
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "Datasets 75,488 of 189,660 kept")
        for text in (
            "36,120 of 83,288  43 %",
            "prep:B4 OOM-killed",
            "OOM kills 1",
            "GPU 0",
            "ETA 29 h (24–36)",
            "1.9 TB free, 61 h left",
        ):
            await until_shown(pilot, text)
        await until(pilot, lambda: any("⣿" in row or "█ max" in row for row in shown(app)))


@pytest.mark.parametrize(
    "make",
    [
        scenario.live,
        scenario.all_well,
        scenario.all_crashed,
        scenario.empty_run,
        scenario.started,
        stale,
        lost,
        refused,
        hostile,
    ],
)
async def test_no_state_at_any_size_fails(make: Callable[[float], Snapshot]) -> None:
    app, _ = deck(on(make))
    async with app.run_test(size=(120, 40)) as pilot:
        for size in ((200, 50), (40, 12), (1, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.press("tab", "j", "z")
        await until(pilot, lambda: bool(shown(app)[0].strip()))
        await pilot.press("question_mark")
        assert app.is_running


@pytest.mark.parametrize("size", SIZES)
async def test_outside_text_is_shown_as_it_is(size: tuple[int, int]) -> None:
    app, _ = deck(on(hostile))
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "CUDA [rank0] out of memory")
        screen = "\n".join(shown(app))
        assert "\x1b" not in screen
        assert "\u202e" not in screen
        table = app.screen.query_one(JobsTable)
        assert all(isinstance(cell, Text) for row in range(table.row_count) for cell in table.get_row_at(row))


async def test_old_data_are_dimmed_and_dated() -> None:
    app, session = deck(on(stale))
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "stale: nothing heard from the agent for 4")
        assert app.screen.has_class("-stale")
        assert "stale, 4" in shown(app)[1]
        session.tell(StreamLine(beat=Beat(scenario.AT, 6, scenario.HOST, {})), clock.now())
        await until(pilot, lambda: not app.screen.has_class("-stale"))


async def test_a_lost_link_says_since_when_and_what_is_tried() -> None:
    app, _ = deck(on(lost))
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "link to gpu-3 lost 3 m 0")
        assert "lost, 3 m" in shown(app)[1]


async def test_a_refusal_is_one_line_with_a_key() -> None:
    app, session = deck(on(refused))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "gpu-3 refused: the host key has changed")
        assert "c tries again" in shown(app)[0]
        await pilot.press("c")
        assert session.asked == [("retry", "")]


async def test_an_event_repaints_only_what_changed() -> None:
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "needs 92 GB, 61 GB left")
        table = app.screen.query_one(JobsTable)
        before = [table.get_row_at(row) for row in range(table.row_count)]
        status = JobStatus("prep:B4", JobState.RUNNING, attempt=2, restarts=1, started_at=scenario.AT)
        session.tell(StreamLine(event=Event(7, scenario.AT, "state", "x", "prep:B4", status=status)), clock.now())
        await until_shown(pilot, "prep:B4        running")
        after = [table.get_row_at(row) for row in range(table.row_count)]
        changed = [row for row in range(table.row_count) if before[row] != after[row]]
        assert changed == [5]
        kept = [b is a for b, a in zip(before[5], after[5], strict=True)]
        assert True in kept


async def test_a_flood_of_messages_is_painted_four_times_a_second() -> None:
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "828 tok/s")
        paints = 0
        paint = app.screen.paint  # type: ignore[attr-defined]

        def counted() -> None:
            nonlocal paints
            paints += 1
            paint()

        app.screen.paint = counted  # type: ignore[attr-defined]
        begun = time.monotonic()
        for step in range(2000):
            sample = JobSample(
                progress=Progress(scenario.AT + step, "answers", step, 83288, figures={"tok_s": 1.0 + step})
            )
            session.tell(StreamLine(beat=Beat(scenario.AT + step, 6, scenario.HOST, {"generate": sample})), clock.now())
            if step % 100 == 0:
                await pilot.pause()
        await until_shown(pilot, "2,000 tok/s")
        assert paints <= 4 * (time.monotonic() - begun) + 4


async def test_a_time_without_the_link_stands_between_the_events() -> None:
    app, session = deck()
    async with app.run_test(size=(200, 50)) as pilot:
        await until_shown(pilot, "restart prep:B5 (ana@laptop)")
        session.tell(Gap(scenario.AT + 1, 3725.0, 1412, pruned=2900), clock.now())
        kept = "1,412 events caught up with, 2,900 older ones are no longer kept by the agent"
        await until_shown(pilot, f"nothing heard for 1 h 02 m, {kept}")
        event = Event(7, scenario.AT + 2, "state", "prep:B4 running", "prep:B4")
        session.tell(StreamLine(event=event), clock.now())
        await until_shown(pilot, "prep:B4 running")
        rows = shown(app)
        places = [
            next(at for at, row in enumerate(rows) if text in row and at > 20)
            for text in ("prep:B4 running", "nothing heard for", "restart prep:B5")
        ]
        assert places == sorted(places)


@pytest.mark.parametrize("keys, pane", [((), "#panes"), (("enter",), "#job"), (("l",), "#log")])
async def test_old_figures_are_marked_on_every_screen(keys: tuple[str, ...], pane: str) -> None:
    app, session = deck(on(stale))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*keys)
        await until(pilot, lambda: bool(app.screen.query(pane)) and app.screen.has_class("-stale"))
        await until(pilot, lambda: app.screen.query_one(pane).styles.opacity < 1)
        await until_shown(pilot, "stale: nothing heard from the agent for 4")
        session.tell(StreamLine(beat=Beat(scenario.AT, 6, scenario.HOST, {})), clock.now())
        await until(pilot, lambda: app.screen.query_one(pane).styles.opacity == 1)


async def test_an_event_renders_the_cells_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[tuple[int, int]] = []
    render = DataTable._render_cell

    def counted(table: JobsTable, row: int, column: int, *rest: Any) -> Any:
        if row >= 0:
            rendered.append((row, column))
        return render(table, row, column, *rest)

    monkeypatch.setattr(DataTable, "_render_cell", counted)
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:B8")
        await until(pilot, lambda: len(rendered) > 100)
        status = JobStatus("prep:B4", JobState.FAILED, "no such file")
        event = Event(7, scenario.AT, "state", "prep:B4 failed", "prep:B4", status=status)
        rendered.clear()
        session.tell(StreamLine(event=event), clock.now())
        await until_shown(pilot, "no such file")
        assert rendered
        assert len({row for row, _ in rendered}) == 1


async def test_a_server_that_was_not_looked_at_yet_says_so() -> None:
    app, session = deck()
    async with app.run_test(size=(200, 50)) as pilot:
        await until_shown(pilot, "150 of 150 running")
        sample = JobSample(up_s=60.0, server=ServerSample("waiting for the first look", ready=True))
        beat = Beat(scenario.AT + 2, 6, scenario.HOST, {"serve:baseline": sample})
        session.tell(StreamLine(beat=beat), clock.now())
        rows = await until_rows(pilot, "waiting for the first look")
        assert len(rows) == 2  # in the job's row, and in the pane of the servers


async def until_rows(pilot: Pilot[int], text: str) -> list[str]:
    await until_shown(pilot, text)
    return [row for row in shown(pilot.app) if text in row]


async def test_the_cursor_stays_on_its_job_when_rows_come() -> None:
    app, session = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:B8")
        for _ in range(4):
            await pilot.press("j")
        status = JobStatus("aaa:stranger", JobState.RUNNING)
        session.tell(StreamLine(event=Event(8, scenario.AT, "state", "x", "aaa:stranger", status=status)), clock.now())
        await until_shown(pilot, "aaa:stranger")
        selected = app.screen.query_one(JobsTable).selected
        assert selected is not None
        assert selected.name == "prep:B3"


async def test_a_filter_narrows_and_escape_widens() -> None:
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        table = app.screen.query_one(JobsTable)
        await pilot.press("/", *"serve")
        await until(pilot, lambda: table.row_count == 3)
        await until_shown(pilot, "⏎ take it")
        assert not any("restart" in row for row in shown(app)[-1:])
        await pilot.press("enter", "j")
        await until_shown(pilot, "⏎ details")
        assert table.selected is not None
        await until_shown(pilot, "Jobs 3 of 17")
        await pilot.press("escape")
        await until(pilot, lambda: table.row_count == 17)


async def test_small_screens_show_one_pane_at_a_time() -> None:
    app, _ = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("tab", "tab")
        await until_shown(pilot, "Datasets")
        await until_shown(pilot, "114k")
        assert not any("prep:A2" in row for row in shown(app))
        await pilot.press("escape")
        await until_shown(pilot, "prep:A2")


async def test_a_pane_can_have_the_whole_screen() -> None:
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "Inference")
        await pilot.press("tab", "tab", "tab", "z")
        await until(pilot, lambda: sum("⣿" in row for row in shown(app)) > 15)
        await pilot.press("z")
        await until_shown(pilot, "Datasets")


async def test_the_next_problem_is_one_key_away() -> None:
    app, _ = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n")
        await until_shown(pilot, "∅ prep:B5 empty · 0 of 114,000: no user turn")


async def test_the_theme_can_be_changed() -> None:
    app, _ = deck()
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("t")
        await until(pilot, lambda: not app.current_theme.dark)
        await pilot.press("t")
        await until(pilot, lambda: app.current_theme.dark)


@pytest.mark.parametrize("size", SIZES)
async def test_figures_of_before_a_restart_are_named_as_such(size: tuple[int, int]) -> None:
    app, _ = deck(on(scenario.came_back))
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "all well, but generate was restarted 1× by itself")
        await until_shown(pilot, "before the restart")
        await until_shown(pilot, "43 %")


@pytest.mark.parametrize("size", SIZES)
async def test_wide_characters_move_no_column(size: tuple[int, int]) -> None:
    def wide(now: float) -> Snapshot:
        statuses, samples = scenario.running_jobs()
        statuses["prep:B5"] = replace(statuses["prep:B5"], reason="没有用户回合" * 20, diagnosis=None)
        return fold(scenario.live(now), scenario.state_of(statuses, samples), now)

    app, _ = deck(on(wide))
    async with app.run_test(size=size) as pilot:
        # The table is laid out anew when it gets its room.
        await until(pilot, lambda: any("没有用户回合" in row and "12 m" in row for row in shown(app)))
        rows = shown(app)
        above = next(row for row in rows if "prep:B3 " in row and "12,000 of" in row)
        found = next(row for row in rows if "prep:B5 " in row and "没有用户回合" in row and "12 m" in row)
        assert "…" in found
        edge = above.index("36 m") + len("36 m")
        assert cells(found[: found.index("12 m")]) + len("12 m") == edge


async def test_a_refusal_is_told_whole_and_no_plan_is_made_up() -> None:
    text = "the host key of [10.0.0.3]:2222 is not known yet: ssh-ed25519 SHA256:" + "k" * 43 + ". Accept it once"

    def new_key(now: float) -> Snapshot:
        return replace(scenario.started(now), link=LinkView("refused", now, text, "SHA256:" + "k" * 43))

    app, session = deck(on(new_key))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "Accept it once")
        assert not any("in the plan" in row for row in shown(app))
        await until_shown(pilot, "a accept its key")
        await pilot.press("a")
        await until_shown(pilot, "Accept this host key?")
        await pilot.press("n")
        await until_shown(pilot, "the host key is not accepted")
        assert session.asked == []
        await pilot.press("a")
        await until_shown(pilot, "Accept this host key?")
        await pilot.press("y")
        await until(pilot, lambda: session.asked == [("retry", "SHA256:" + "k" * 43)])


async def test_a_changed_key_is_not_accepted_from_here() -> None:
    app, session = deck(on(refused))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "the host key has changed")
        await pilot.press("a")
        await until_shown(pilot, "there is no new host key to accept")
        assert session.asked == []


async def test_a_dataset_that_goes_to_zero_is_red_and_one_key_away() -> None:
    app, _ = deck(ScriptedSession(scenario.emptying(clock.now())))
    async with app.run_test(size=(200, 50)) as pilot:
        await until_shown(pilot, "prep:B5 keeps nothing, 0 of 12,000 rows so far: no user turn")
        await until_shown(pilot, "10 % · no user turn")
        await pilot.press("n")
        await until_shown(pilot, "prep:B5 running")
