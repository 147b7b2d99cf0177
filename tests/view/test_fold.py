"""Snapshots from messages: what is folded, and that no order of messages can break it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console import report
from console.view import LinkView, Message, Refresh, Snapshot, attention, fold
from pipeline.protocol import (
    Beat,
    Event,
    History,
    JobSample,
    JobState,
    JobStatus,
    Progress,
    State,
    StreamLine,
)
from tests.view import scenario


def event(seq: int, name: str, state: JobState) -> StreamLine:
    return StreamLine(event=Event(seq, scenario.AT, "state", f"{name} {state}", name, status=JobStatus(name, state)))


def test_a_state_gives_rows_in_plan_order() -> None:
    snapshot = scenario.live(100.0)
    assert [row.name for row in snapshot.jobs] == [job.name for job in scenario.PLAN.jobs]
    assert snapshot.run == "kimi-k2.5-eagle3"
    assert snapshot.age(102.5) == 2.5
    assert not snapshot.stale(106.0)
    assert snapshot.stale(106.1)


def test_an_event_changes_one_job_and_is_newest_first() -> None:
    before = scenario.live(100.0)
    after = fold(before, event(7, "prep:B4", JobState.RUNNING), 101.0)
    row = after.job("prep:B4")
    assert row is not None
    assert row.state is JobState.RUNNING
    assert after.events[0].seq == 7
    assert after.seq == 7
    old = before.job("prep:B4")
    assert old is not None
    assert old.state is JobState.QUEUED


def test_an_event_seen_before_changes_nothing_but_the_age() -> None:
    before = scenario.live(100.0)
    after = fold(before, event(3, "generate", JobState.FAILED), 109.0)
    assert after == replace(before, received=109.0)


def test_a_state_after_a_break_keeps_the_events_seen() -> None:
    before = fold(scenario.live(100.0), event(7, "prep:B4", JobState.RUNNING), 101.0)
    later = replace(
        scenario.state_of(*scenario.running_jobs()), seq=9, events=(Event(9, scenario.AT, "agent", "back"),)
    )
    after = fold(before, later, 160.0)
    assert [each.seq for each in after.events] == [9, 7, 6, 5, 4, 3, 2, 1]


def test_a_state_read_while_the_stream_is_behind_costs_no_event() -> None:
    before = scenario.live(100.0)
    state = replace(
        scenario.state_of(*scenario.running_jobs()), seq=9, events=(Event(9, scenario.AT, "agent", "back"),)
    )
    after = fold(before, Refresh(replace(state, agent=replace(state.agent, pid=7))), 101.0)
    assert after.agent is not None
    assert after.agent.pid == 7
    assert (after.seq, after.events, after.statuses) == (before.seq, before.events, before.statuses)
    after = fold(fold(after, event(7, "prep:B4", JobState.RUNNING), 102.0), event(8, "prep:B4", JobState.DONE), 103.0)
    assert [each.seq for each in after.events[:3]] == [8, 7, 6]


def test_a_new_journal_forgets_the_events_of_the_old_one() -> None:
    before = scenario.live(100.0)
    fresh = replace(scenario.state_of({}, {}), seq=1, events=(Event(1, scenario.AT, "agent", "started"),))
    assert [each.seq for each in fold(before, fresh, 101.0).events] == [1]


def test_a_longer_journal_of_another_run_forgets_the_old_one_too() -> None:
    before = scenario.live(100.0)
    other = replace(scenario.AGENT, journal="another")
    state = replace(scenario.state_of({}, {}), agent=other, seq=9, events=(Event(9, scenario.AT, "agent", "started"),))
    after = fold(before, state, 101.0)
    assert [each.seq for each in after.events] == [9]
    assert after.reported == {}


def test_time_stands_still_when_data_is_old() -> None:
    snapshot = scenario.live(100.0)
    row = snapshot.job("generate")
    assert row is not None
    assert row.up_s == 26 * 3600.0
    assert snapshot.run_time == 31 * 3600.0
    later = fold(snapshot, StreamLine(beat=Beat(scenario.AT + 60, 6, scenario.HOST, {})), 160.0)
    moved = later.job("generate")
    assert moved is not None
    assert moved.up_s == 26 * 3600.0 + 60


def test_beats_extend_the_curve_and_never_without_bound() -> None:
    snapshot = scenario.empty_run(0.0)
    for step in range(2500):
        progress = Progress(step, "answers", figures={"tok_s": float(step)})
        beat = Beat(float(step), 6, None, {"generate": JobSample(progress=progress)})
        snapshot = fold(snapshot, StreamLine(beat=beat), float(step))
    history = snapshot.history["generate", "tok_s"]
    assert history.values[-1] == 2499.0
    assert len(history.values) == len(history.at) == 2000


def test_a_clock_that_was_set_back_does_not_stop_the_curve() -> None:
    snapshot = scenario.empty_run(0.0)
    for at in (5000.0, 5002.0, 5004.0, 4000.0, 4002.0):
        progress = Progress(at, "answers", figures={"tok_s": at / 10})
        beat = Beat(at, 6, None, {"generate": JobSample(progress=progress)})
        snapshot = fold(snapshot, StreamLine(beat=beat), 1.0)
    history = snapshot.history["generate", "tok_s"]
    assert (history.at, history.values) == ((4000.0, 4002.0), (400.0, 400.2))


def test_a_job_that_left_the_plan_is_still_shown() -> None:
    snapshot = fold(scenario.live(0.0), event(7, "prep:old", JobState.STOPPING), 1.0)
    assert snapshot.jobs[-1].name == "prep:old"
    assert not snapshot.jobs[-1].in_plan


names = st.sampled_from([job.name for job in scenario.PLAN.jobs] + ["\x1b[31mstranger", ""])
statuses = st.builds(JobStatus, name=names)
lines = st.builds(
    StreamLine,
    event=st.none() | st.builds(Event, job=names, status=st.none() | statuses),
    beat=st.none() | st.builds(Beat, jobs=st.dictionaries(names, st.builds(JobSample), max_size=4)),
)
states = st.builds(
    State,
    plan=st.none() | st.just(scenario.PLAN),
    jobs=st.dictionaries(names, statuses, max_size=5),
    beat=st.builds(Beat, jobs=st.dictionaries(names, st.builds(JobSample), max_size=3)),
    events=st.lists(st.builds(Event, job=names), max_size=3).map(tuple),
)
messages = st.one_of(lines, states, st.builds(History, job=names), st.builds(LinkView))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(messages, max_size=6))
def test_no_order_of_messages_breaks_the_snapshot(told: list[Message]) -> None:
    snapshot = Snapshot(run="r", host_label="h")
    now = 0.0
    for message in told:
        now += 1.0
        snapshot = fold(snapshot, message, now)
        assert attention(snapshot, now).text
    assert report.status_text(snapshot, now)
    assert report.report_markdown(snapshot, now)
    assert report.status_json(snapshot, now)
    assert report.exit_code(snapshot, now) in (0, 1, 3, 4, 5)
    assert all("\x1b" not in row.name + row.why + row.last_line for row in snapshot.jobs)


def test_the_figures_of_the_attempt_before_stand_until_the_new_one_reports() -> None:
    snapshot = scenario.came_back(0.0)
    row, figure = snapshot.job("generate"), snapshot.inference
    assert row is not None
    assert figure is not None
    assert (row.before, row.done, row.total) == (True, 36_120, 83_288)
    assert row.why == "before the restart: 36,120 of 83,288 prompts"
    assert (figure.before, figure.done, figure.tok_s, figure.in_flight) == (True, 36_120, 828.0, None)
    assert next(each for each in snapshot.datasets if each.name == "B3").answered == 4900
    progress = Progress(scenario.AT + 9, "answers", 36_130, 83_288)
    beat = Beat(scenario.AT + 9, 7, scenario.HOST, {"generate": JobSample(progress=progress)})
    again = fold(snapshot, StreamLine(beat=beat), 9.0).job("generate")
    assert again is not None
    assert (again.before, again.done) == (False, 36_130)


def test_a_first_attempt_and_a_new_journal_show_no_old_figures() -> None:
    snapshot = scenario.live(0.0)
    beat = Beat(scenario.AT, 7, scenario.HOST, {"generate": JobSample()})
    first = fold(snapshot, StreamLine(beat=beat), 1.0).job("generate")
    assert first is not None
    assert first.done is None
    fresh = replace(scenario.state_of(*scenario.running_jobs()), seq=1, beat=beat)
    assert fold(snapshot, fresh, 1.0).reported == {}
