"""The snapshot as text, JSON, Markdown and exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from console import report
from console.view import LinkView, Snapshot, fold
from pipeline.protocol import JobState, JobStatus
from tests.view import scenario


def with_state(state: JobState) -> Snapshot:
    return fold(scenario.started(0.0), scenario.state_of({"generate": JobStatus("generate", state)}, {}), 0.0)


@pytest.mark.parametrize(
    ("snapshot", "code"),
    [
        (scenario.all_well(0.0), report.WELL),
        (scenario.live(0.0), report.CRASHED),
        (scenario.all_crashed(0.0), report.CRASHED),
        (with_state(JobState.LOST), report.CRASHED),
        (with_state(JobState.STALLED), report.STALLED),
        (scenario.started(0.0), report.UNREACHABLE),
        (replace(scenario.all_well(0.0), link=LinkView("lost")), report.UNREACHABLE),
        (replace(scenario.all_well(0.0), link=LinkView("refused")), report.UNREACHABLE),
        (scenario.empty_run(0.0), report.NO_PLAN),
    ],
)
def test_exit_codes(snapshot: Snapshot, code: int) -> None:
    assert report.exit_code(snapshot) == code
    assert report.exit_code(snapshot, 1.0) == code


def test_old_data_are_not_believed() -> None:
    assert report.exit_code(scenario.all_well(0.0), 60.0) == report.UNREACHABLE


def test_text_names_the_problem_first_and_every_job() -> None:
    text = report.status_text(scenario.live(0.0), 1.0)
    lines = text.splitlines()
    assert lines[0].startswith("kimi-k2.5-eagle3 @ gpu-3   live, 1.0 s old   run 31 h 00 m   ETA 29 h (24–36) generate")
    assert lines[1].startswith("1 needs you: prep:B5 empty")
    for job in scenario.PLAN.jobs:
        assert any(line.startswith(job.name) for line in lines)
    assert "36,120 of 83,288 answered (43 %), 828 tok/s" in text
    assert "disk    1.9 TB free, 61 h left (of 7.0 TB)" in text


def test_json_holds_the_same_figures() -> None:
    found = json.loads(report.status_json(scenario.live(0.0), 1.0))
    assert found["exit_code"] == report.CRASHED
    assert found["attention"]["job"] == "prep:B5"
    assert [job["name"] for job in found["jobs"]] == [job.name for job in scenario.PLAN.jobs]
    assert found["machine"]["memory_limit"] == 960 * scenario.GB
    assert found["inference"]["tok_s"] == 828.0
    assert found["age_s"] == 1.0


def test_markdown_has_counts_problems_and_what_is_next() -> None:
    text = report.report_markdown(scenario.live(0.0), 1.0)
    assert "8 of 17 jobs are done." in text
    assert "| B5 | empty | 114,000 | 0 | 114,000 |" in text
    assert 'to do: Set shape = "conversations" for B5' in text
    assert "- `prep:B4` queued: needs 92 GB, 61 GB left" in text
    assert "ETA 29 h (24–36)" in text


def test_outside_text_is_not_markdown() -> None:
    status = JobStatus("generate", JobState.FAILED, "**bold** <script>x</script> [a](b) | `c` \x1b[31m\u202e")
    snapshot = fold(scenario.started(0.0), scenario.state_of({"generate": status}, {}), 0.0)
    text = report.report_markdown(snapshot)
    assert "<script>" not in text
    assert r"\*\*bold\*\*" in text
    assert r"\[a\](b) \| \`c\`" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[a](b)" in report.status_text(snapshot)


def test_a_waived_failure_is_told_and_is_no_failure() -> None:
    snapshot = scenario.all_well(0.0)
    status = replace(snapshot.statuses["prep:B4"], state=JobState.EMPTY, reason="no rows", waived="gated, *asked*")
    snapshot = replace(snapshot, statuses={**snapshot.statuses, "prep:B4": status})
    assert report.exit_code(snapshot) == report.WELL
    assert "waived: gated, *asked* · no rows" in report.status_text(snapshot)
    text = report.report_markdown(snapshot)
    assert r"waived, the others go on without it: gated, \*asked\*" in text


def test_markdown_has_the_worst_problem_first_and_restarts_too() -> None:
    text = report.report_markdown(scenario.live(0.0), 1.0)
    assert text.index("`prep:B5` **empty**") < text.index("`prep:B4` **queued**") < text.index("## Running")
    assert "The others: 5 waiting, 1 queued, 1 running, 1 ready, 1 empty." in text
    text = report.report_markdown(scenario.came_back(0.0), 1.0)
    assert "`generate` **running** again, after 1 restart" in text
    assert "36,120 of 83,288 answered (43 %) before the restart" in text
