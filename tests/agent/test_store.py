"""The journal: whole or not at all, durable, numbered without gaps; and the history of figures."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.agent.figures import KEPT_OF_A_JOB, Figures
from pipeline.agent.store import ATTEMPTS_KEPT, JobRecord, Store
from pipeline.protocol import ActionReply, Attempt, Event, JobSpec, JobState, JobStatus, Plan
from tests.agent.rig import ROOT


def test_everything_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "journal.db"
    store = Store(path)
    plan = Plan("run", "r1", (JobSpec("a", "prep", ("x",)),))
    record = JobRecord(JobStatus("a", JobState.RUNNING, pid=5), "run", (1.0, 2.0), 3.0, "boot", 7)
    with store.transaction():
        store.set_plan(plan)
        store.set_job("a", record)
        store.set_attempt("a", Attempt(1, "r1"), ended=True)
        store.set_attempt("a", Attempt(2, "r1"), ended=False)
        first = store.add_event(Event(0, 1.0, "state", "one"))
        store.set_reply("q", 1.0, ActionReply(True, "did"))
    store.close()
    again = Store(path)
    assert (again.plan(), again.jobs(), again.seq) == (plan, {"a": record}, 1)
    assert [attempt.number for attempt in again.attempts("a")] == [1, 2]
    assert [(job, attempt.number) for job, attempt in again.open_attempts()] == [("a", 2)]
    assert again.events(0, 10) == [first] and again.events(1, 10) == []
    assert again.reply_to("q") == ActionReply(True, "did") and again.reply_to("other") is None
    again.close()


def test_a_failed_transaction_leaves_no_trace_and_no_gap(tmp_path: Path) -> None:
    store = Store(tmp_path / "journal.db")
    with store.transaction():
        store.add_event(Event(0, 1.0, "state", "one"))
    with pytest.raises(RuntimeError), store.transaction():
        store.add_event(Event(0, 2.0, "state", "lost"))
        raise RuntimeError
    with store.transaction():
        assert store.add_event(Event(0, 3.0, "state", "two")).seq == 2
    assert [event.text for event in store.events(0, 10)] == ["one", "two"]
    store.close()


def test_a_writer_killed_at_any_moment_leaves_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    script = (
        "import sys; from pathlib import Path\n"
        "from pipeline.agent.store import Store; from pipeline.protocol import Event\n"
        "store = Store(Path(sys.argv[1]))\n"
        "while True:\n"
        "    with store.transaction():\n"
        "        for _ in range(3): seq = store.add_event(Event(0, 0.0, 'state', 'x')).seq\n"
        "    print(seq, flush=True)\n"
    )
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ}
        )
        assert writer.stdout is not None
        told = 0
        for line in writer.stdout:
            told = int(line)
            if told % 60 == 0:
                break
        writer.send_signal(signal.SIGKILL)
        told = max([told, *(int(line) for line in writer.stdout.read().split(b"\n")[:-1])])
        writer.stdout.close()
        writer.wait()
        store = Store(path)
        numbers = [event.seq for event in store.events(0, 1_000_000)]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) % 3 == 0 and len(numbers) >= told
        store.close()


def test_the_newest_events_and_the_newest_of_each_job_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = Store(path)
    with store.transaction():
        for number in range(1, 1001):
            job = {5: "early", 7: "early", 9: "gone"}.get(number, "flaps" if number % 2 else "")
            store.add_event(Event(0, float(number), "state", f"number {number}", job))
    store.set_job("gone", JobRecord(JobStatus("gone", JobState.STOPPED)))
    assert store.prune(kept=1000) == 0
    assert store.prune(kept=100, at_once=600) == 600
    assert [event.seq for event in store.events(0, 4)] == [7, 9, 603, 604]
    store.remove_job("gone")
    assert store.prune(kept=100) == 299 and store.prune(kept=100) == 0
    assert [event.seq for event in store.events(0, 2000)] == [7, *range(901, 1001)]
    store.close()
    again = Store(path)
    assert again.seq == 1000 and again.add_event(Event(0, 1.0, "state", "next", "early")).seq == 1001
    assert again.prune(kept=100) == 2
    assert [event.seq for event in again.events(0, 2000)] == list(range(902, 1002))
    again.close()


def test_a_journal_that_never_noted_the_newest_events_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    store = Store(path)
    with store.transaction():
        for number in range(100):
            store.add_event(Event(0, 1.0, "state", "", "early" if number == 30 else "late" if number > 50 else ""))
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE last_events")
    database.close()
    again = Store(path)
    assert again.prune(kept=10) == 89
    assert [event.seq for event in again.events(0, 100)] == [31, *range(91, 101)]
    again.close()


def test_a_job_that_flaps_for_days_leaves_no_more_attempts_than_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "journal.db")
    with store.transaction():
        store.set_attempt("a", Attempt(1, "r1"), ended=False)
        for number in range(2, ATTEMPTS_KEPT + 501):
            store.set_attempt("a", Attempt(number, "r1"), ended=False)
            store.set_attempt("a", Attempt(number, "r1"), ended=True)
    numbers = [attempt.number for attempt in store.attempts("a")]
    assert numbers == [1, *range(501, ATTEMPTS_KEPT + 501)]  # what has not ended is never forgotten
    store.close()


def test_a_clock_that_was_set_back_leaves_the_newest_value_last(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Store(path).close()
    figures = Figures(path)
    for number in range(100):
        figures.add(10_000.0 + 5 * number, {("a", "memory"): 1.0, ("b", "memory"): 2.0})
    figures.add(10_000.0 - 3600, {("a", "memory"): 7.0})
    assert figures.last("a", "memory") == 7.0
    figures.add(10_000.0 - 3595, {("a", "memory"): 8.0})
    assert figures.query("a", "memory", 50) == ((6400.0, 6405.0), (7.0, 8.0))
    figures.close()
    # And while there was no agent.
    figures = Figures(path)
    figures.add(3000.0, {("a", "memory"): 9.0})
    assert figures.last("a", "memory") == 9.0 and figures.query("a", "memory", 50) == ((3000.0,), (9.0,))
    # Set forth, the old values stay where they were.
    figures.add(6600.0, {("a", "memory"): 10.0})
    assert figures.query("a", "memory", 50) == ((3000.0, 6600.0), (9.0, 10.0))
    figures.close()


def test_a_job_has_no_more_figures_than_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Store(path).close()
    figures = Figures(path)
    for number in range(500):
        at = 1000.0 + 5 * number
        figures.add(at, {("a", f"invented {number}"): 1.0, ("a", "x" * 5000): 1.0, ("", f"gpu{number}.power"): 1.0})
        figures.add(at, {("a", "invented 3"): float(number), ("b", "tok_s"): 2.0})
    figures.add(4000.0, {("a", "memory"): 7.0, ("a", "invented 900"): 1.0})
    assert figures.last("a", "memory") == 7.0 and figures.last("a", "invented 3") == 499.0
    assert figures.last("a", "invented 64") is None and figures.last("a", "invented 63") == 1.0
    assert figures.last("", "gpu499.power") == 1.0
    assert figures.refused == {"a": "x" * 5000}
    figures.close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM series WHERE job = 'a'").fetchone() == (KEPT_OF_A_JOB + 1,)
    database.close()


def test_history_is_thinned_and_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Store(path).close()
    figures = Figures(path)
    for number in range(600):
        figures.add(1000.0 + 5 * number, {("a", "tok_s"): float(number), ("", "memory_used"): 5.0})
    at, values = figures.query("a", "tok_s", 50)
    assert 45 <= len(at) <= 51 and list(at) == sorted(at) and list(values) == sorted(values)
    assert values[0] < 12 and values[-1] > 588
    assert figures.query("a", "unknown", 50) == ((), ())
    assert set(figures.query("", "memory_used", 10)[1]) == {5.0}
    assert figures.last("a", "tok_s") == 599.0 and figures.last("a", "unknown") is None
    figures.close()
    again = Figures(path)
    assert again.query("a", "tok_s", 50) == (at, values)
    # Long afterwards only minute means are left of the old values.
    again.add(1000.0 + 50_000, {("a", "tok_s"): 1.0})
    again.add(1000.0 + 50_100, {("a", "tok_s"): 1.0})
    at, _ = again.query("a", "tok_s", 5000)
    assert 40 < len(at) < 70
    again.close()
