"""The window on a log file, and where a search in it stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.view.logbuffer import PENDING_KEPT, LogBuffer
from console.view.search import Search
from console.view.text import shown_line
from pipeline.protocol import LogHits, LogPage

FILE = b"".join(b"line %d\n" % number for number in range(1000)) + b"no newline yet"


def page(data: bytes, offset: int, limit: int) -> LogPage:
    offset = max(0, len(data) + offset) if offset < 0 else offset
    return LogPage(1, offset, len(data), data[offset : offset + limit])


def noticed(buffer: LogBuffer) -> str:
    return buffer.notice.text if buffer.notice is not None else ""


def texts(buffer: LogBuffer) -> list[str]:
    return [line.text for line in buffer.lines]


def test_the_end_of_a_file_begins_with_a_whole_line() -> None:
    buffer = LogBuffer()
    buffer.restart(page(FILE, -100, 100))
    assert texts(buffer) == [f"line {number}" for number in range(991, 1000)]
    assert buffer.pending is not None
    assert buffer.pending.text == "no newline yet"
    assert FILE[buffer.lines[0].offset :].startswith(b"line 991\n")


def test_the_pending_line_is_finished_by_the_next_page() -> None:
    buffer = LogBuffer()
    buffer.restart(page(FILE, -100, 100))
    grown = FILE + b", now\nnext\n"
    assert buffer.append(page(grown, buffer.end, 1000)) == 2
    assert texts(buffer)[-2:] == ["no newline yet, now", "next"]
    assert buffer.pending is None


def test_earlier_pages_go_before() -> None:
    buffer = LogBuffer()
    buffer.restart(page(FILE, -100, 100))
    while buffer.start > 0:
        wanted = max(0, buffer.start - 300)
        assert buffer.prepend(page(FILE, wanted, buffer.start - wanted)) > 0
    assert texts(buffer) == [f"line {number}" for number in range(1000)]


def test_a_full_window_makes_room_at_the_other_end() -> None:
    buffer = LogBuffer(limit=50)
    buffer.restart(page(FILE, 0, 5000))
    assert len(buffer.lines) == 50
    first = buffer.lines[0]
    assert FILE[first.offset :].startswith(first.text.encode())
    assert buffer.start == first.offset
    buffer.prepend(page(FILE, buffer.start - 100, 100))
    assert len(buffer.lines) == 50
    follow_on = page(FILE, buffer.end, 60)
    buffer.append(follow_on)
    assert [FILE[line.offset :].startswith(line.text.encode() + b"\n") for line in buffer.lines] == [True] * 50


def test_a_jump_is_counted() -> None:
    buffer = LogBuffer()
    buffer.restart(page(FILE, 0, 100))
    buffer.append(page(FILE, -200, 200))
    assert buffer.skipped == len(FILE) - 200 - 100
    assert buffer.lines[-1].text == "line 999"


def test_a_line_without_end_takes_bounded_memory_and_keeps_offsets() -> None:
    data = b"first\n" + b"x" * (4 * PENDING_KEPT) + b"\nlast\n"
    buffer = LogBuffer()
    offset = 0
    while offset < len(data):
        buffer.append(page(data, offset, 10_000))
        offset = buffer.end
    assert texts(buffer)[0] == "first"
    assert texts(buffer)[-1] == "last"
    assert data[buffer.lines[-1].offset :] == b"last\n"
    assert len(texts(buffer)[1]) < 3000


def test_a_progress_bar_is_one_line() -> None:
    buffer = LogBuffer()
    buffer.append(LogPage(1, 0, 30, b"10 %\r50 %\r97 %"))
    assert buffer.pending is not None
    assert buffer.pending.text == "97 %"


def test_the_line_at_an_offset() -> None:
    buffer = LogBuffer()
    buffer.restart(page(FILE, 0, len(FILE)))
    where = FILE.index(b"line 500")
    for inside in (where, where + 4):
        index = buffer.line_at(inside)
        assert index is not None
        assert buffer.lines[index].text == "line 500"
    assert buffer.line_at(len(FILE) + 5) is None


@given(st.binary(max_size=400), st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_pages_of_any_size_give_the_same_lines(data: bytes, sizes: list[int]) -> None:
    buffer = LogBuffer()
    turn = 0
    while buffer.end < len(data):
        buffer.append(page(data, buffer.end, sizes[turn % len(sizes)]))
        turn += 1
    *complete, rest = data.split(b"\n")
    assert texts(buffer) == [shown_line(line) for line in complete]
    assert (buffer.pending is not None) == bool(rest)
    at = 0
    for line, held in zip(complete, buffer.lines, strict=True):
        assert held.offset == at
        at += len(line) + 1


def scan(search: Search, where: list[int], size: int, step: int) -> Search:
    """Scan to the end as a host would that looks at ``step`` bytes a call."""
    calls = 0
    while (asked := search.next_offset) is not None:
        reached = min(size, asked + step)
        hits = tuple(offset for offset in where if asked <= offset < reached)
        search = search.found(asked, LogHits(1, hits, reached, size))
        calls += 1
        assert calls < 10_000
    return search


@given(st.lists(st.integers(0, 999), unique=True, max_size=30).map(sorted), st.integers(0, 1000), st.integers(1, 400))
def test_a_search_finds_everything_once(where: list[int], begin: int, step: int) -> None:
    search = scan(Search.start("x", begin, 1000), where, 1000, step)
    assert list(search.hits) == where
    assert search.scanned == 1.0
    for offset in (begin, 0, 999):
        assert search.after(offset) == next((hit for hit in where if hit > offset), None)
        assert search.before(offset) == next((hit for hit in reversed(where) if hit < offset), None)


def test_what_was_given_back_is_said_where_the_window_reaches_it() -> None:
    buffer = LogBuffer()
    buffer.restart(LogPage(1, 5_000_000_100, 5_000_000_200, b"cut line\nwhole line\n", 5_000_000_000))
    assert not noticed(buffer)  # there is more before
    assert buffer.prepend(LogPage(1, 5_000_000_000, 5_000_000_200, b"x" * 108 + b"\n", 5_000_000_000)) == 1
    assert "the first 5.0 GB of this log were given back to the disk" in noticed(buffer)
    assert texts(buffer) == ["x" * 108, "whole line"]


def test_the_first_line_kept_is_shown_although_it_is_cut() -> None:
    buffer = LogBuffer()
    buffer.restart(LogPage(1, 1000, 1016, b"half\nwhole line\n", 1000))
    assert texts(buffer) == ["half", "whole line"]
    assert noticed(buffer)


def test_a_log_of_which_nothing_is_kept_says_so() -> None:
    buffer = LogBuffer()
    buffer.restart(LogPage(1, 3_000_000, 3_000_000, b"", 3_000_000))
    assert "all 3.0 MB of this log were given back" in noticed(buffer)
    assert texts(buffer) == []
