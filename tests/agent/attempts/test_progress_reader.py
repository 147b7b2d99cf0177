from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.agent.attempts import progress_reader
from pipeline.agent.attempts.progress_reader import BLOCK, LINE_LIMIT, ProgressTail
from pipeline.progress import Reporter
from pipeline.protocol import DatasetCount, Eta, Progress, ProgressLine, Result
from tests.agent.sensing import until


def _line(at: float, done: float, **more: object) -> bytes:
    progress = Progress(at=at, phase="read", done=done, **more)  # type: ignore[arg-type]
    return b"\n" + msgspec.json.encode(ProgressLine(progress=progress)) + b"\n"


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.jsonl"


def test_what_a_reporter_writes_is_read_once(path: Path) -> None:
    tail = ProgressTail(path)
    assert not tail.poll()
    reporter = Reporter(path, interval_s=0.0)
    reporter.update("read", done=10, total=100, note="first")
    assert tail.poll()
    assert tail.progress is not None
    assert (tail.progress.done, tail.progress.note, tail.result) == (10, "first", None)
    assert not tail.poll()
    reporter.update("read", done=20, total=100)
    reporter.finish(20, "20 kept")
    assert tail.poll()
    assert tail.progress.done == 20
    assert tail.result is not None
    assert (tail.result.records, tail.result.message) == (20, "20 kept")
    assert tail.eta is None  # over


def test_what_lay_there_at_the_first_look_is_no_advance(path: Path) -> None:
    _append(path, _line(1.0, 5))
    tail = ProgressTail(path)
    assert tail.poll() and not tail.advanced
    _append(path, _line(2.0, 5))
    assert tail.poll() and not tail.advanced
    _append(path, _line(3.0, 6))
    assert tail.poll() and tail.advanced


def test_a_job_that_goes_on_after_a_result_has_none_yet(path: Path) -> None:
    Reporter(path).finish(3, "done")
    tail = ProgressTail(path)
    tail.poll()
    Reporter(path).update("read", done=1, force=True)  # the next attempt into the same file
    tail.poll()
    assert tail.result is None


def test_a_torn_line_waits_for_its_rest(path: Path) -> None:
    whole = _line(1.0, 5.0)
    tail = ProgressTail(path)
    _append(path, whole[:20])
    assert not tail.poll()
    _append(path, whole[20:-1])
    assert not tail.poll()
    _append(path, whole[-1:])
    assert tail.poll()
    assert tail.progress is not None
    assert tail.progress.done == 5.0


def test_a_line_torn_by_a_kill_does_not_swallow_the_next(path: Path) -> None:
    _append(path, _line(1.0, 5.0)[:30] + _line(2.0, 6.0))
    tail = ProgressTail(path)
    assert tail.poll()
    assert tail.progress is not None
    assert tail.progress.done == 6.0


def test_foreign_and_huge_lines_are_skipped(path: Path) -> None:
    _append(path, b'not JSON\n{"x": 1}\n{}\n[]\n\xff\xfe\n' + _line(1.0, 1.0))
    tail = ProgressTail(path)
    assert tail.poll()
    _append(path, b'{"progress": "' + b"x" * (3 * LINE_LIMIT))
    assert not tail.poll()
    assert len(tail._partial) <= LINE_LIMIT
    _append(path, b'"}\n' + _line(2.0, 2.0))
    assert tail.poll()
    assert tail.progress is not None
    assert tail.progress.done == 2.0


def test_a_reader_far_behind_takes_the_newest_lines_only(path: Path) -> None:
    line = _line(1.0, 1.0, note="x" * 1000)
    _append(path, line * (12 * BLOCK // len(line)) + _line(2.0, 7.0))
    tail = ProgressTail(path)
    began = time.perf_counter()
    assert tail.poll()
    assert time.perf_counter() - began < 1.0
    assert tail.progress is not None
    assert tail.progress.done == 7.0


def test_a_file_that_was_truncated_or_replaced_is_read_anew(path: Path) -> None:
    tail = ProgressTail(path)
    _append(path, _line(1.0, 100.0) + _line(2.0, 200.0))
    assert tail.poll()
    path.write_bytes(_line(3.0, 1.0))
    assert tail.poll()
    assert tail.progress is not None
    assert tail.progress.done == 1.0
    other = path.with_name("other")
    other.write_bytes(_line(4.0, 2.0) * 5)
    other.replace(path)
    assert tail.poll()
    assert tail.progress.done == 2.0


def test_a_path_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert not ProgressTail(tmp_path).poll()


# --- Rate and ETA ----------------------------------------------------------------------------------------------------


def _followed(path: Path, points: list[tuple[float, float]], **more: object) -> ProgressTail:
    tail = ProgressTail(path)
    for at, done in points:
        _append(path, _line(at, done, **more))
        tail.poll()
    return tail


def test_a_pipe_in_its_place_holds_nobody_up(path: Path) -> None:
    os.mkfifo(path)
    tail, found = ProgressTail(path), list[bool]()
    looking = threading.Thread(target=lambda: found.append(tail.poll()), daemon=True)
    looking.start()
    looking.join(10)
    assert found == [False]


def test_the_rate_is_by_the_jobs_own_clock_over_a_window(path: Path) -> None:
    # An hour at 1 a second, then five minutes at 10: only the last two minutes count.
    slow = [(float(at), float(at)) for at in range(0, 3600, 20)]
    fast = [(3600.0 + at, 3600.0 + 10 * at) for at in range(0, 300, 5)]
    tail = _followed(path, slow + fast, total=10_000)
    assert tail.rate == pytest.approx(10.0)
    eta = tail.eta
    assert eta is not None
    left = 10_000 - fast[-1][1]
    assert eta.seconds == pytest.approx(left / 10)
    assert eta.low < eta.seconds < eta.high
    assert eta.high < 1.3 * eta.seconds
    assert eta.basis == "rate of the last 120 s"


def test_a_clock_that_is_set_changes_no_rate(path: Path) -> None:
    tail = ProgressTail(path)
    wall = 5000.0
    for second in range(100):
        wall += 1 + {40: 3600, 60: -7200}.get(second, 0)
        _append(path, _line(wall, 10.0 * second, total=2000, monotonic=float(second)))
        tail.poll()
        if second >= 2:
            assert tail.rate == pytest.approx(10.0) and tail.eta is not None
            assert tail.eta.seconds == pytest.approx((2000 - 10 * second) / 10)


def test_an_unsteady_rate_has_a_wider_interval(path: Path) -> None:
    steady = _followed(path, [(float(at), 10.0 * at) for at in range(60)], total=10_000).eta
    path.unlink()
    done, points = 0.0, []
    for at in range(60):
        done += 30.0 if at % 20 < 5 else 3.0
        points.append((float(at), done))
    unsteady = _followed(path, points, total=10_000).eta
    assert steady is not None
    assert unsteady is not None
    assert (unsteady.high - unsteady.low) / unsteady.seconds > 1.5 * (steady.high - steady.low) / steady.seconds


def test_two_lines_give_a_wide_interval(path: Path) -> None:
    eta = _followed(path, [(1.0, 0.0), (2.0, 10.0)], total=110).eta
    assert eta is not None
    assert eta.seconds == pytest.approx(10.0)
    assert eta.low < 6
    assert eta.high > 30


def test_no_rate_without_two_lines_nor_across_phases(path: Path) -> None:
    tail = _followed(path, [(1.0, 1.0)], total=10)
    assert tail.rate is None
    assert tail.eta is None
    _append(path, _line(2.0, 2.0, total=10))
    tail.poll()
    assert tail.rate == pytest.approx(1.0)
    other = Progress(at=3.0, phase="write", done=3.0, total=10)
    _append(path, msgspec.json.encode(ProgressLine(progress=other)) + b"\n")
    tail.poll()
    assert tail.rate is None


def test_work_that_begins_anew_has_a_new_rate(path: Path) -> None:
    tail = _followed(path, [(1.0, 500.0), (2.0, 600.0), (3.0, 0.0), (4.0, 5.0)])
    assert tail.rate == pytest.approx(5.0)


def test_a_clock_set_back_or_forth_gives_no_mad_rate(path: Path) -> None:
    tail = _followed(path, [(100.0, 1.0), (101.0, 2.0), (50.0, 3.0), (51.0, 4.0), (51.0, 5.0), (52.0, 6.0)])
    assert tail.rate is not None
    assert 0 < tail.rate <= 3
    _append(path, _line(3652.0, 7.0))
    tail.poll()
    _append(path, _line(3653.0, 8.0))
    tail.poll()
    assert tail.rate is not None
    assert tail.rate == pytest.approx(1.0)


def test_a_job_that_fell_silent_has_a_falling_rate(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_reader, "QUIET_AFTER_S", 0.05)
    tail = _followed(path, [(1.0, 0.0), (2.0, 10.0)], total=100)
    until(lambda: 0 < (tail.rate or 0.0) < 9.9)
    first = tail.rate or 0.0
    until(lambda: 0 < (tail.rate or 0.0) < first)


def test_the_jobs_own_estimate_comes_first(path: Path) -> None:
    own = Eta(60.0, 50.0, 90.0, "tokens left at 830 tok/s")
    assert _followed(path, [(1.0, 0.0), (2.0, 10.0)], total=100, eta=own).eta == own


def test_all_done_is_no_time_left(path: Path) -> None:
    eta = _followed(path, [(1.0, 0.0), (2.0, 100.0)], total=100).eta
    assert eta is not None
    assert (eta.seconds, eta.low, eta.high) == (0, 0, 0)


def test_work_that_stands_still_has_no_eta(path: Path) -> None:
    tail = _followed(path, [(1.0, 5.0), (2.0, 5.0)], total=100)
    assert tail.rate == 0
    assert tail.eta is None


# --- Stall -----------------------------------------------------------------------------------------------------------


def test_only_getting_further_ends_the_quiet(path: Path) -> None:
    tail = _followed(path, [(1.0, 5.0)])
    until(lambda: tail.quiet_s > 0.05)
    _append(path, _line(2.0, 5.0, note="still trying"))
    tail.poll()
    assert tail.quiet_s > 0.05
    counts = {"B3": DatasetCount(read=10)}
    _append(path, _line(3.0, 5.0, datasets=counts))
    tail.poll()
    assert tail.quiet_s < 0.05
    until(lambda: tail.quiet_s > 0.05)
    _append(path, _line(4.0, 5.0, datasets=counts))
    tail.poll()
    assert tail.quiet_s > 0.05
    _append(path, _line(5.0, 6.0, datasets=counts))
    tail.poll()
    assert tail.quiet_s < 0.05


# --- Whatever comes --------------------------------------------------------------------------------------------------

_LINES = st.one_of(
    st.builds(Progress, at=st.floats(allow_nan=False, allow_infinity=False), phase=st.sampled_from(["a", "b"]),
              done=st.floats(allow_nan=False, allow_infinity=False), total=st.none() | st.floats(0, 1e300))
    .map(lambda progress: msgspec.json.encode(ProgressLine(progress=progress))),
    st.builds(Result, at=st.just(1.0), records=st.integers(0, 5), message=st.text(max_size=5))
    .map(lambda result: msgspec.json.encode(ProgressLine(result=result))),
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")),
)  # fmt: skip


@given(lines=st.lists(_LINES, max_size=12), cuts=st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=80, deadline=None)
def test_any_lines_cut_anywhere_are_read_as_if_at_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("progress")
    data = b"".join(line + b"\n" for line in lines)
    pieces, whole = folder / "pieces", folder / "whole"
    whole.write_bytes(data)
    pieces.touch()
    in_pieces, at_once = ProgressTail(pieces), ProgressTail(whole)
    at_once.poll()
    start = 0
    for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        _append(pieces, data[start:cut])
        in_pieces.poll()
        start = cut
    assert in_pieces.progress == at_once.progress
    assert in_pieces.result == at_once.result
    for tail in (in_pieces, at_once):
        rate, eta = tail.rate, tail.eta
        assert rate is None or math.isfinite(rate)
        if eta is not None:
            assert 0 <= eta.low <= eta.seconds <= eta.high < math.inf
