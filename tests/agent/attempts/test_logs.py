from __future__ import annotations

import os
import re
import threading
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.agent.attempts import logs
from pipeline.agent.attempts.logs import LINE_KEPT, LogIndexer, Page, last_line, page, plain, search, tail, time_at
from pipeline.agent.host.holes import allocated, give_back
from pipeline.agent.host.log_caps import LogCaps
from tests.agent.sensing import until

# --- Plain text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[38:2::255:0:0mtrue colour\x1b[m", "true colour"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r0m\x1b\\after", "after"),
        ("\x9b31mC1\x9b0m", "C1"),
        ("\x1b(Bcharset\x1b=", "charset"),
        ("never ended \x1b]0;title\nnext line", "never ended \nnext line"),
        ("never ended \x1b[12;3", "never ended "),
        ("\x1b", ""),
        ("bell\x07 back\x08space nul\x00", "bell backspace nul"),
        ("safe\u202edesrever\u2066x\u2069", "safedesreverx"),
        ("a\tb\u2028c", "a b c"),
        ("Grüße 你好 👩\u200d🔬", "Grüße 你好 👩\u200d🔬"),
        ("[rank0] [/tmp/x.log]", "[rank0] [/tmp/x.log]"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
    ],
)
def test_control_sequences_are_removed(text: str, shown: str) -> None:
    assert plain(text) == shown


_NASTY = st.text(st.one_of(st.sampled_from("\x1b\x9b\x9d[]();?0m\x07\\\n\r\t\u202e\u2066P"), st.characters()))


@given(_NASTY)
def test_plain_text_has_nothing_a_terminal_acts_on(text: str) -> None:
    shown = plain(text)
    assert all(
        char == "\n" or char in "\u200c\u200d" or unicodedata.category(char) not in ("Cc", "Cf", "Cs") for char in shown
    )
    assert plain(shown) == shown


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_text_without_control_characters_stays(text: str) -> None:
    assert plain(text) == text


# --- Pages -----------------------------------------------------------------------------------------------------------


def test_pages_from_the_front_and_from_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(bytes(range(256)) * 4)
    assert page(log, 0, 3) == Page(0, 1024, b"\x00\x01\x02")
    assert page(log, 1000, 100) == Page(1000, 1024, bytes(range(232, 256)))
    assert page(log, -2, 100) == Page(1022, 1024, b"\xfe\xff")
    assert page(log, -5000, 2) == Page(0, 1024, b"\x00\x01")
    assert page(log, 5000, 2) == Page(1024, 1024, b"")
    assert page(log, 0, -1) == Page(0, 1024, b"")
    assert page(tmp_path / "none", 0, 10) == Page(0, 0, b"")
    assert len(page(log, 0, 1 << 30).data) == 1024
    assert tail(log, 2) == b"\xfe\xff"
    assert tail(log, 0) == b""
    assert tail(tmp_path / "none", 10) == b""


def test_a_log_of_10_gb_opens_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"the last line\n")
    began = time.perf_counter()
    end = page(log, -14, 100)
    line = last_line(log)
    assert time.perf_counter() - began < 0.2
    assert end == Page(10 << 30, (10 << 30) + 14, b"the last line\n", 10 << 30)
    assert line == "the last line"


def test_a_front_that_was_given_back_is_skipped_and_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\n" * 65536 + b"new\n" * 65536)
    before = allocated(log)
    try:
        give_back(log, 65536 * 4)
    except OSError as error:
        pytest.skip(f"the temporary folder's file system punches no holes: {error.strerror}")
    assert allocated(log) <= before - 65536 * 4
    first, size = 65536 * 4, 65536 * 8
    assert page(log, 0, 8) == Page(first, size, b"new\nnew\n", first)
    assert page(log, first - 100, 4) == Page(first, size, b"new\n", first)
    assert page(log, first + 4, 4) == Page(first + 4, size, b"new\n", first)
    assert page(log, -4, 4) == Page(size - 4, size, b"new\n", first)
    assert page(log, -size, 4) == Page(first, size, b"new\n", first)
    assert last_line(log) == "new"
    assert search(log, "new", 0, 1, 1 << 20) == ((first,), first + 4)
    assert search(log, "old", 0, 1, 1 << 20) == ((), size)


def test_a_cut_within_a_block_of_the_file_system_shows_no_zeros(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000)
    try:
        give_back(log, 70_000)
    except OSError as error:
        pytest.skip(f"the temporary folder's file system punches no holes: {error.strerror}")
    assert page(log, 0, 50_000) == Page(70_000, 100_000, b"x" * 30_000, 70_000)


def test_a_log_given_back_as_a_whole_keeps_its_size(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000)
    try:
        give_back(log, 1 << 20)
    except OSError as error:
        pytest.skip(f"the temporary folder's file system punches no holes: {error.strerror}")
    assert page(log, -10, 10) == page(log, 0, 10) == Page(100_000, 100_000, b"", 100_000)
    assert last_line(log) == ""
    assert search(log, "x", 0, 10, 1 << 20) == ((), 100_000)


def test_pages_of_a_log_whose_front_is_given_back_meanwhile_hold_no_zeros(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"")
    block = b"a line of a log that is read while its front goes\n" * 20_000
    done = threading.Event()

    def grow() -> None:
        try:
            with log.open("ab", buffering=0) as file:
                for number in range(1, 200):
                    file.write(block)
                    give_back(log, (number - 1) * len(block) // 65536 * 65536)
        finally:
            done.set()

    writer = threading.Thread(target=grow)
    writer.start()
    seen = 0
    while not done.is_set():
        found = page(log, 0, 1 << 16)
        assert b"\0" not in found.data
        seen = max(seen, found.first)
    writer.join()
    assert seen > 0


# --- Search ----------------------------------------------------------------------------------------------------------


def _everything(log: Path, text: str, budget: int, limit: int = 3) -> list[int]:
    found: list[int] = []
    offset, size = 0, log.stat().st_size
    while offset < size:
        some, upto = search(log, text, offset, limit, budget)
        assert upto > offset
        found += [at for at in some if at not in found]
        offset = upto
    return found


def test_search_finds_each_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one error, error\nnothing\nlast Error without newline")
    assert search(log, "error", 0, 10, 1 << 20) == ((0, 25), log.stat().st_size)
    assert search(log, "Error", 0, 10, 1 << 20)[0] == (25,)
    assert search(log, "error", 0, 1, 1 << 20) == ((0,), 17)
    assert search(log, "absent", 0, 1, 1 << 20) == ((), log.stat().st_size)
    assert search(log, "error", 10_000, 1, 1 << 20) == ((), log.stat().st_size)
    assert search(tmp_path / "none", "error", 0, 1, 1 << 20) == ((), 0)
    with pytest.raises(ValueError, match="empty"):
        search(log, "", 0, 1, 1)


def test_search_reads_no_more_than_its_budget_and_goes_on_from_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        for number in range(200_000):
            file.write(b"line %06d%s\n" % (number, b" needle" if number % 20_000 == 19_999 else b""))
    found, upto = search(log, "needle", 0, 100, 1 << 18)
    assert upto <= 1 << 18
    assert len(found) == 1
    every = _everything(log, "needle", 1 << 18)
    assert len(every) == 10
    for at in every:
        assert b"needle" in page(log, at, 25).data.split(b"\n")[0]


def test_search_in_a_line_longer_than_any_block(tmp_path: Path) -> None:
    log = tmp_path / "log"
    border = 1 << 20
    log.write_bytes(b"short\n" + b"x" * (border - 6 - 3) + b"needle" + b"x" * (border * 2) + b"\nneedle\n")
    found, upto = search(log, "needle", 0, 10, 1 << 30)
    assert found == (6, log.stat().st_size - 7)
    assert upto == log.stat().st_size
    assert _everything(log, "needle", 1)[-1] == log.stat().st_size - 7


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    text=st.text("abAB", min_size=1, max_size=2),
    limit=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_search_agrees_with_looking_at_each_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], text: str, limit: int
) -> None:
    log = tmp_path_factory.mktemp("search") / "log"
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    expected, at = [], 0
    for line in lines:
        if text.encode() in (line.lower() if text == text.lower() else line):
            expected.append(at)
        at += len(line) + 1
    assert _everything(log, text, 1, limit) == expected


def test_a_long_line_begun_before_the_budget_ends_is_not_lost(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * (2 * LINE_KEPT - 10) + b"\nneedle here\n")
    assert _everything(log, "needle", 1) == [2 * LINE_KEPT - 9]


# --- The last line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        (b"\n\n  \n", ""),
        (b"one\ntwo\n", "two"),
        (b"one\r\ntwo\r\n", "two"),
        (b"Loading:  10%|#   \rLoading:  20%|##  \rLoading:  30%|### ", "Loading:  30%|###"),
        (b"bar 99%\r\x1b[2K\rdone\n", "done"),
        (b"\x1b[31mCUDA [rank0] OOM\x1b[0m\n\x1b[0m\n", "CUDA [rank0] OOM"),
        (b"bad \xff\xfe bytes", "bad \ufffd\ufffd bytes"),
        (b"x" * 5000, "x" * 200),
    ],
)
def test_last_line(tmp_path: Path, data: bytes, shown: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(data)
    assert last_line(log) == shown


def test_last_line_of_no_log(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none") == ""
    assert last_line(tmp_path) == ""


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_last_line_of_anything_is_one_plain_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    log = tmp_path_factory.mktemp("last") / "log"
    log.write_bytes(data)
    shown = last_line(log)
    assert len(shown) <= 200
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)


# --- The index of times ----------------------------------------------------------------------------------------------


def test_the_index_says_when_a_byte_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "INDEX_EVERY_S", 0.0)
    log, index = tmp_path / "log", tmp_path / "log.idx"
    indexer = LogIndexer(log, index)
    indexer.tick()  # no log yet
    assert not index.exists()
    log.write_bytes(b"12345")
    began = time.time()
    indexer.tick()
    indexer.tick()  # nothing new: no record
    assert index.stat().st_size == 16
    with log.open("ab") as file:
        file.write(b"67890")
    until(lambda: time.time() > began)
    indexer.tick()
    first, second = time_at(index, 4), time_at(index, 5)
    assert first is not None
    assert second is not None
    assert began <= first < second <= time.time()
    assert time_at(index, 10) is None
    assert time_at(tmp_path / "none", 0) is None


def test_the_index_is_written_once_a_second_at_most(tmp_path: Path) -> None:
    log, index = tmp_path / "log", tmp_path / "log.idx"
    indexer = LogIndexer(log, index)
    for number in range(50):
        log.write_bytes(b"x" * number)
        indexer.tick()
    assert index.stat().st_size == 16


def test_the_index_goes_on_after_a_restart_and_a_torn_record(tmp_path: Path) -> None:
    log, index = tmp_path / "log", tmp_path / "log.idx"
    log.write_bytes(b"12345")
    LogIndexer(log, index).tick()
    LogIndexer(log, index).tick()
    assert index.stat().st_size == 16
    with index.open("ab") as file:
        file.write(b"torn")
    log.write_bytes(b"1234567890")
    LogIndexer(log, index).tick()
    assert index.stat().st_size == 32
    assert time_at(index, 7) is not None


def test_the_index_of_a_log_that_began_anew_begins_anew(tmp_path: Path) -> None:
    log, index = tmp_path / "log", tmp_path / "log.idx"
    log.write_bytes(b"1234567890")
    LogIndexer(log, index).tick()
    log.write_bytes(b"1")
    LogIndexer(log, index).tick()
    assert index.stat().st_size == 16
    assert time_at(index, 5) is None


def test_an_index_that_cannot_be_written_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1")
    indexer = LogIndexer(log, tmp_path / "missing" / "log.idx")
    indexer.tick()
    full = Path("/dev/full")
    if full.exists():
        indexer = LogIndexer(log, full)
        indexer.tick()
        indexer.tick()
        assert sum("no times for" in record.getMessage() for record in caplog.records) == 1


# --- Something else in the log's place -------------------------------------------------------------------------------


def test_a_pipe_in_the_place_of_a_log_holds_nobody_up(tmp_path: Path) -> None:
    path, index = tmp_path / "log", tmp_path / "log.index"
    for fifo in (path, index):
        os.mkfifo(fifo)
    found: list[object] = []

    def look() -> None:
        found.extend((page(path, 0, 100), search(path, "x", 0, 1, 100), last_line(path), time_at(index, 0)))
        LogIndexer(path, index).tick()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(10)
    assert found == [Page(0, 0, b""), ((), 0), "", None]
    assert not looking.is_alive()


def test_what_a_link_in_the_place_of_a_log_leads_to_is_never_cut(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "jobs" / "j" / "1" / "log"
    log.parent.mkdir(parents=True)
    data.write_bytes(b"x" * (1 << 20))
    log.symlink_to(data)
    with pytest.raises(OSError, match="symbolic link"):
        give_back(log, 1 << 19)
    caps = LogCaps()
    caps.trim([log], 1 << 17)
    caps.trim_old(log.parent.parent, 2, 1 << 17, 3)
    assert caps.remarks == ()
    assert data.read_bytes() == b"x" * (1 << 20)
