"""What the rows say about jobs, datasets, servers and inference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from console import report
from console.view import Snapshot, fold
from console.view.jobs import JobRow, job_rows
from console.view.rows import DatasetRow
from pipeline.protocol import DatasetCount, JobSample, JobState, JobStatus, Progress, ServerSample
from tests.view import scenario


def row_of(snapshot: Snapshot, name: str) -> JobRow:
    row = snapshot.job(name)
    assert row is not None
    return row


def test_a_reason_for_every_state() -> None:
    snapshot = scenario.live(0.0)
    assert row_of(snapshot, "prep:A1").why == "2,800 of 2,809 kept"
    assert row_of(snapshot, "prep:B4").why == "needs 92 GB, 61 GB left"
    assert row_of(snapshot, "serve:baseline").why == "150 running, 12 queued, KV 71 %"
    assert row_of(snapshot, "generate").why.startswith("B3: answers 1.4 × as long as the pilot's · answers: 36,120 of")
    assert row_of(snapshot, "merge").why == "needs generate done"


def test_a_signal_is_named_where_nothing_else_is_known() -> None:
    statuses = {"generate": JobStatus("generate", JobState.FAILED, signal=9)}
    snapshot = fold(scenario.started(0.0), scenario.state_of(statuses, {}), 0.0)
    assert row_of(snapshot, "generate").why == "ended by signal 9"


def test_a_loading_server_says_how_far_it_is() -> None:
    statuses = {"serve:baseline": JobStatus("serve:baseline", JobState.STARTING, started_at=scenario.AT - 90)}
    samples = {"serve:baseline": JobSample(server=ServerSample("loading weights, 31 of 61 layers"))}
    snapshot = fold(scenario.started(0.0), scenario.state_of(statuses, samples), 0.0)
    assert row_of(snapshot, "serve:baseline").why == "loading weights, 31 of 61 layers"
    assert snapshot.servers[0].step == "loading weights, 31 of 61 layers"


def test_figures_of_an_ended_job_are_not_shown_as_if_it_ran() -> None:
    statuses, samples = scenario.running_jobs()
    statuses["generate"] = replace(statuses["generate"], state=JobState.FAILED, ended_at=scenario.AT)
    snapshot = fold(scenario.started(0.0), scenario.state_of(statuses, samples), 0.0)
    row = row_of(snapshot, "generate")
    assert (row.memory, row.cpu_percent, row.rate, row.eta) == (None, None, None, None)
    assert snapshot.inference is not None
    assert snapshot.inference.tok_s is None
    assert snapshot.inference.mean_tokens == 788.0


def test_datasets_count_rows_reasons_and_answers() -> None:
    datasets = {row.name: row for row in scenario.live(0.0).datasets}
    assert list(datasets) == ["A1", "A2", "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8"]
    empty = datasets["B5"]
    assert (empty.read, empty.kept, empty.dropped) == (114_000, 0, 114_000)
    assert empty.reasons[0] == ("no user turn", 113_200)
    assert (datasets["B3"].answered, datasets["B3"].to_answer) == (4900, 12000)
    assert datasets["A1"].answered is None


def test_rows_that_were_not_asked_for_do_not_hide_why_others_were_lost() -> None:
    status, sample = scenario.done("prep:B2", 15_000)
    assert status.result is not None
    counts = {"B2": DatasetCount(50_000, 15_000, {"not sampled": 34_000, "no user turn": 1_000}, total=50_000)}
    status = replace(status, result=replace(status.result, datasets=counts))
    snapshot = fold(scenario.started(0.0), scenario.state_of({"prep:B2": status}, {"prep:B2": sample}), 0.0)
    row = next(row for row in snapshot.datasets if row.name == "B2")
    assert row.reasons[0] == ("no user turn", 1_000)
    assert (row.dropped, row.lost) == (35_000, 1_000)


def test_what_dedup_drops_is_counted_with_what_prep_dropped() -> None:
    prep, sample = scenario.done("prep:B2", 15_000)
    dedup, _ = scenario.done("dedup", 14_000)
    assert prep.result is not None and dedup.result is not None
    counts = {"B2": DatasetCount(16_000, 15_000, {"duplicate": 900, "too long": 100}, 90_000, total=16_000)}
    left = {"B2": DatasetCount(15_000, 14_000, {"duplicate": 400, "near duplicate": 600}, 80_000, total=15_000)}
    before = {"prep:B2": replace(prep, result=replace(prep.result, datasets=counts))}
    after = before | {"dedup": replace(dedup, result=replace(dedup.result, datasets=left))}

    def row(statuses: dict[str, JobStatus]) -> DatasetRow:
        plan = replace(scenario.PLAN, jobs=(*scenario.PLAN.jobs, scenario.spec("dedup", *scenario.PREPS)))
        state = replace(scenario.state_of(statuses, {"prep:B2": sample}), plan=plan)
        return next(row for row in fold(scenario.started(0.0), state, 0.0).datasets if row.name == "B2")

    assert (row(before).kept, row(before).dropped) == (15_000, 1_000)
    found = row(after)
    assert (found.read, found.kept, found.dropped, found.tokens) == (16_000, 14_000, 2_000, 80_000)
    assert found.reasons == (("duplicate", 1_300), ("near duplicate", 600), ("too long", 100))
    after["prep:B2"] = replace(prep, result=replace(prep.result, datasets={"B2": DatasetCount(17_000, 17_000)}))
    assert row(after).kept == 17_000, "prep has made other records since"


def test_what_is_wrong_with_a_datasets_answers_is_counted_beside_it() -> None:
    generate, sample = scenario.done("generate", 900)
    prep, _ = scenario.done("prep:B2", 1_000)
    assert generate.result is not None
    refused = "HTTP 400: too long\x1b[2J"
    counts = {"B2": DatasetCount(1_000, 980, {refused: 20}, total=1_000, faulty={"truncated": 31, "repetitive": 2})}
    statuses = {"prep:B2": prep, "generate": replace(generate, result=replace(generate.result, datasets=counts))}
    snapshot = fold(scenario.started(0.0), scenario.state_of(statuses, {"generate": sample}), 0.0)
    row = next(row for row in snapshot.datasets if row.name == "B2")
    assert [count for _, count in row.of_answers] == [31, 20, 2]
    assert [reason for reason, _ in row.of_answers][::2] == ["truncated", "repetitive"]
    assert "\x1b" not in row.of_answers[1][0]
    assert "answers: truncated 31, HTTP 400: too long" in report.status_text(snapshot, 0.0)


def test_a_dataset_that_has_not_reported_is_listed() -> None:
    snapshot = fold(scenario.started(0.0), scenario.state_of({}, {}), 0.0)
    assert [row.name for row in snapshot.datasets][:2] == ["A1", "A2"]
    assert not any(row.reported for row in snapshot.datasets)


def test_inference_is_the_generate_job() -> None:
    figure = scenario.live(0.0).inference
    assert figure is not None
    assert (figure.tok_s, figure.done, figure.total, figure.errors) == (828.0, 36120, 83288, 0.0)
    assert figure.eta is not None
    assert len(figure.history.at) == 300


def test_the_run_waits_for_the_longest_job() -> None:
    slow = scenario.live(0.0).longest
    assert slow is not None
    assert slow.name == "generate"


def test_the_run_time_ends_with_the_last_job() -> None:
    statuses = {job.name: scenario.done(job.name, 10)[0] for job in scenario.PLAN.jobs}
    snapshot = fold(scenario.started(0.0), scenario.state_of(statuses, {}), 0.0)
    assert snapshot.run_time is not None
    assert abs(snapshot.run_time - 0.6 * 3600) < 1


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(0.0, "loading the tokenizer", note="/a/model"), "loading the tokenizer · /a/model"),
        (Progress(0.0, "starting"), "starting"),
        (Progress(0.0, "main", 0, 20, "answers"), "main: 0 of 20 answers"),
        (
            Progress(0.0, "main", 3, 20, "answers", note="server gone for 4 s"),
            "server gone for 4 s · main: 3 of 20 answers",
        ),
    ],
)
def test_what_a_running_job_does_is_said_first_where_nothing_is_counted(progress: Progress, words: str) -> None:
    status = JobStatus("prep:B1", JobState.RUNNING)
    (row,) = job_rows(None, {"prep:B1": status}, {"prep:B1": JobSample(progress=progress)}, {}, 1.0)
    assert row.why == words
