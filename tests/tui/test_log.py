"""The log screen: follow, hold, scroll back, search, attempts, floods and long lines."""

from __future__ import annotations

from dataclasses import replace

from console import clock
from console.tui.screens.log import PAGE, LogScreen
from console.tui.widgets.logview import LogView
from pipeline.protocol import Event, JobState, JobStatus, StreamLine
from tests.tui.screen import deck, shown, until, until_shown
from tests.view import scenario

LINES = b"".join(b"step %05d [rank0] loss 2.5 [/tmp/x.log]\n" % number for number in range(40_000))


async def open_log(pilot: object, app: object) -> LogScreen:
    from textual.pilot import Pilot

    assert isinstance(pilot, Pilot)
    await until_shown(pilot, "prep:A1")
    await pilot.press("l")
    await until(pilot, lambda: isinstance(pilot.app.screen, LogScreen))
    screen = pilot.app.screen
    assert isinstance(screen, LogScreen)
    return screen


async def test_the_end_is_shown_and_followed() -> None:
    app, session = deck()
    session.log_bytes = LINES
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "step 39999 [rank0] loss 2.5 [/tmp/x.log]")
        assert session.pages[0] == (-PAGE, PAGE)
        session.log_bytes += b"the \x1b[1mnewest\x1b[0m line\n"
        await until_shown(pilot, "the newest line")
        assert sum(limit for _, limit in session.pages) < len(LINES) * 3


async def test_scrolling_up_holds_and_reads_earlier_pages() -> None:
    app, session = deck()
    session.log_bytes = LINES
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await open_log(pilot, app)
        await until_shown(pilot, "step 39999")
        await pilot.press("k")
        await until_shown(pilot, "held: f follows")
        view = screen.query_one(LogView)
        first = screen._buffer.start
        view.scroll_to(y=0, animate=False)
        await until(pilot, lambda: screen._buffer.start < first)
        await pilot.pause()
        assert view.top_offset >= first
        await pilot.press("g")
        await until_shown(pilot, "step 00000")
        await pilot.press("f")
        await until_shown(pilot, "step 39999")


async def test_a_search_runs_on_the_host_and_goes_around() -> None:
    app, session = deck()
    lines = LINES.splitlines(keepends=True)
    for number in (5, 20_000, 39_990):
        lines[number] = b"here is the NEEDLE number %d\n" % number
    session.log_bytes = b"".join(lines)
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "step 39999")
        await pilot.press("g")
        await until_shown(pilot, "NEEDLE number 5")
        await pilot.press("/", *"NEEDLE", "enter")
        await until_shown(pilot, '"NEEDLE": 3 hits')
        await pilot.press("n")
        await until_shown(pilot, "NEEDLE number 20000")
        await pilot.press("n")
        await until_shown(pilot, "NEEDLE number 39990")
        await pilot.press("n")
        await until_shown(pilot, "around the end of the log")
        await until_shown(pilot, "NEEDLE number 5")
        await pilot.press("N")
        await until_shown(pilot, "NEEDLE number 39990")


async def test_a_search_without_a_hit_says_so() -> None:
    app, session = deck()
    session.log_bytes = LINES[:4000]
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "step 000")
        await pilot.press("/", *"[nowhere]", "enter")
        await until_shown(pilot, '"[nowhere]" is not in this log')


async def test_a_megabyte_line_is_cut_with_a_count() -> None:
    app, session = deck()
    session.log_bytes = b"before\n" + b"x" * 1_000_000 + b"\nafter\n"
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_log(pilot, app)
        await until_shown(pilot, "after")
        await pilot.press("g", "w")
        await until_shown(pilot, "before")
        await until(pilot, lambda: max(len(line.text) for line in screen._buffer.lines) < 3000)
        await until(pilot, lambda: any("more bytes" in line.text for line in screen._buffer.lines))


async def test_a_progress_bar_is_one_line() -> None:
    app, session = deck()
    session.log_bytes = b"start\n" + b"".join(b"\r%3d %%" % share for share in range(101))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "100 %")
        assert not any(" 50 %" in row for row in shown(app))


async def test_long_lines_wrap_on_a_key() -> None:
    app, session = deck()
    session.log_bytes = b"a" * 79 + b"b" * 78 + b"THE-END\n"
    async with app.run_test(size=(80, 24)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "aaaa")
        assert not any("THE-END" in row for row in shown(app))
        await pilot.press("w")
        await until_shown(pilot, "THE-END")


async def test_a_flood_is_not_read_whole_and_what_is_left_out_is_counted() -> None:
    app, session = deck()
    session.log_bytes = LINES[:200_000]
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await open_log(pilot, app)
        await until_shown(pilot, "following")
        read = len(session.pages)
        session.log_bytes = LINES * 10 + b"the last one\n"
        await until_shown(pilot, "the last one")
        await until_shown(pilot, "not shown, the log grew faster")
        assert len(session.pages) - read <= 4
        assert len(screen._buffer.lines) <= 20_000
        assert screen._buffer.skipped > 10_000_000


async def test_attempts_and_a_new_one_while_following() -> None:
    app, session = deck()
    session.earlier_log = b"of the first attempt\n"
    session.log_bytes = b"of the second attempt\n"
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n")
        screen = await open_log(pilot, app)
        await until_shown(pilot, "of the second attempt")
        await pilot.press("p")
        await until_shown(pilot, "of the first attempt")
        await pilot.press("p")
        await until_shown(pilot, "prep:B5 has no attempt before this one")
        await pilot.press("P", "f")
        await until_shown(pilot, "of the second attempt")
        status = JobStatus("prep:B5", JobState.RUNNING, attempt=3, restarts=2, started_at=scenario.AT)
        session.tell(StreamLine(event=Event(9, scenario.AT, "state", "x", "prep:B5", status=status)), clock.now())
        await until_shown(pilot, "prep:B5: attempt 3 started")
        assert screen._attempt == 3


async def test_a_job_that_never_started_has_no_log() -> None:
    app, session = deck()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("G", "l")
        await until_shown(pilot, "has not started yet")
        assert session.pages == []


async def test_a_dead_link_is_said_and_the_lines_stay() -> None:
    app, session = deck()
    session.log_bytes = b"a line\n"
    async with app.run_test(size=(120, 40)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "a line")
        now = clock.now()
        session.snapshot = replace(session.snapshot, received=now - 60)
        session.tell(StreamLine(), now)
        await until_shown(pilot, "stale: nothing heard")
        assert any("a line" in row for row in shown(app))


async def test_a_page_on_its_way_holds_up_no_other_attempt() -> None:
    app, session = deck()
    session.log_bytes, session.earlier_log = LINES, b"the attempt before ended here\n"
    session.hold_pages.clear()
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "prep:A1")
        await pilot.press("n", "l")
        await until(pilot, lambda: len(session.pages) == 1)
        await pilot.press("p")
        await until_shown(pilot, "attempt 1 of 2")
        session.hold_pages.set()
        await until_shown(pilot, "the attempt before ended here")
        assert not any("step 39999" in row for row in shown(app))


async def test_a_front_that_was_given_back_is_words_not_zeros() -> None:
    app, session = deck()
    session.log_bytes = bytes(len(LINES)) + LINES
    session.given_back = len(LINES)
    async with app.run_test(size=(100, 24)) as pilot:
        screen = await open_log(pilot, app)
        await until_shown(pilot, "step 39999")
        await until_shown(pilot, "MB of its front given back to the disk")
        await pilot.press("g")
        await until_shown(pilot, "── the first 1.6 MB of this log were given back to the disk ──")
        await until_shown(pilot, "step 00000")
        view = screen.query_one(LogView)
        asked = len(session.pages)
        await pilot.press("j", "k", "k")
        await pilot.pause()
        assert view.top_offset == len(LINES)
        assert len(session.pages) == asked  # there is nothing before it to be asked for
        await pilot.press("slash", *"step 00007", "enter")
        await until_shown(pilot, "step 00007")


async def test_an_attempt_of_whose_log_nothing_is_kept_says_so() -> None:
    app, session = deck()
    session.log_bytes = bytes(3_000_000)
    session.given_back = 3_000_000
    async with app.run_test(size=(100, 24)) as pilot:
        await open_log(pilot, app)
        await until_shown(pilot, "all 3.0 MB of this log were given back to the disk")
