"""What a plan must hold, and what applying one changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.agent.rules.planning import changes, faults, records_of, refusal, settings
from pipeline.protocol import (
    DatasetCount,
    JobSpec,
    JobState,
    JobStatus,
    Need,
    Notify,
    Plan,
    Progress,
    Resources,
    Result,
)

BASE = JobSpec("a", "prep", ("python", "-m", "pipeline.prep"), content_hash="one")


def plan(*jobs: JobSpec, release: str = "r1") -> Plan:
    return Plan("run", release, jobs)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (plan(BASE, BASE), "two jobs"),
        (plan(replace(BASE, name="../x")), "a job's name"),
        (plan(replace(BASE, name="")), "a job's name"),
        (plan(replace(BASE, argv=())), "argv is empty"),
        (plan(replace(BASE, argv=("a\0b",))), "NUL"),
        (plan(replace(BASE, env={"A=B": "1"})), "env"),
        (plan(replace(BASE, needs=(Need("b"),))), "needs b, which is not in the plan"),
        (plan(replace(BASE, needs=(Need("a"),))), "circle"),
        (plan(BASE, release="../../etc"), "release"),
    ],
)
def test_a_broken_plan_is_named(broken: Plan, words: str) -> None:
    assert words in "; ".join(faults(broken))


def test_a_sound_plan_has_no_faults() -> None:
    assert faults(plan(BASE, replace(BASE, name="b", needs=(Need("a"),)))) == []


def effect(new: JobSpec, state: JobState, records: int = 0, *, release: str = "r1") -> tuple[str, str]:
    statuses = {"a": JobStatus("a", state, attempt=0 if state is JobState.WAITING else 1)}
    found = changes(plan(BASE), plan(new, release=release), statuses, {"a": records})
    return found[0].effect, found[0].detail


def test_the_effect_depends_on_what_changed_and_on_what_runs() -> None:
    S = JobState  # noqa: N806
    assert effect(BASE, S.RUNNING) == ("nothing", "")
    assert effect(BASE, S.RUNNING, release="r2")[1] == "keeps its release until it starts again"
    assert effect(replace(BASE, env={"A": "1"}), S.RUNNING) == ("restarts", "changes env; resumes")
    assert effect(replace(BASE, env={"A": "1"}), S.DONE)[0] == "live"
    assert effect(replace(BASE, resources=Resources(5)), S.RUNNING) == ("live", "changes resources")
    other = replace(BASE, content_hash="two", argv=("x",))
    assert effect(other, S.DONE, 2800) == ("discards", "2,800 records were made with other settings")
    assert effect(other, S.FAILED)[0] == "restarts"
    assert effect(other, S.WAITING)[0] == "live"
    assert effect(replace(BASE, inputs_hash="two"), S.DONE, 2800) == (
        "restarts",
        "its inputs change; keeps what still fits",
    )
    assert effect(replace(BASE, inputs_hash="two"), S.WAITING)[0] == "live"


def test_what_changes_for_the_agent_itself_is_named_by_the_keys_of_the_config() -> None:
    old = plan(BASE)
    assert settings(None, old) == settings(old, old) == ()
    new = replace(old, disk=replace(old.disk, log=1, warn_left_s=60.0), notify=Notify("HOOK"), reserve_memory=1)
    assert settings(old, new) == ("resources.reserve", "notify.webhook", "disk.log", "disk.warn_left")
    assert settings(old, replace(old, run="other")) == ("run.name",)


def test_new_and_removed_jobs() -> None:
    statuses = {"a": JobStatus("a", JobState.RUNNING, attempt=1)}
    found = changes(plan(BASE), plan(replace(BASE, name="b")), statuses, {})
    assert [(change.job, change.effect, change.detail) for change in found] == [
        ("b", "new", ""),
        ("a", "removed", "is stopped"),
    ]


def test_records_are_discarded_only_by_name() -> None:
    statuses = {"a": JobStatus("a", JobState.DONE, attempt=1)}
    found = changes(plan(BASE), plan(replace(BASE, content_hash="two")), statuses, {"a": 7})
    assert "a (7 records)" in refusal(found, ()) and refusal(found, ("a",)) == ""
    assert refusal(found, ("b",)) != ""


def test_records_come_from_the_result_else_from_progress() -> None:
    status = JobStatus("a", JobState.RUNNING)
    counted = Progress(0, "read", 5, datasets={"B1": DatasetCount(9, 4), "B2": DatasetCount(9, 3)})
    assert records_of(status, counted) == 7
    assert records_of(status, Progress(0, "read", 5)) == 5
    assert records_of(status, Progress(0, "load", 5, unit="bytes")) == 0
    assert records_of(replace(status, result=Result(0, 12, "made")), counted) == 12
    assert records_of(None, None) == 0
