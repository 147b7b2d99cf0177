"""What changing a key does to jobs that run is what its class says, for every key of the config."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from console import plan
from console.config import Config
from console.config.fields import KeyClass, class_of
from pipeline.agent.rules.planning import changes
from pipeline.protocol import Change, JobState, JobStatus, Plan
from tests.config.sources import real

HASHED = {"content_hash", "inputs_hash"}


def variants(node: Any, kind: KeyClass, path: str = "") -> Iterator[tuple[str, Any]]:
    """``node`` with one key of the class changed, for each such key: its path, and the changed copy."""
    hints = get_type_hints(type(node), include_extras=False)
    for field in dataclasses.fields(node):
        value, name = getattr(node, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            changed = variants(value, kind, f"{name}.")
        elif isinstance(value, dict) and any(dataclasses.is_dataclass(each) for each in value.values()):
            changed = (
                (where, {**value, key: each})
                for key, one in value.items()
                for where, each in variants(one, kind, f"{name}.{key}.")
            )
        elif class_of(field) == kind:
            changed = iter([(name, another(value, hints[field.name]))])
        else:
            continue
        for where, new in changed:
            yield where, dataclasses.replace(node, **{field.name: new})


def another(value: Any, hint: Any) -> Any:
    """Another value of the key's type."""
    options = [one for one in get_args(hint) if one is not type(None)] if get_origin(hint) is Literal else []
    if options:
        return next(one for one in options if one != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, dict):
        return {**value, "another": "1"}
    if isinstance(value, tuple):
        return value[:-1] if value else ((9,) if "int" in str(hint) else ("prep:A1",))
    if value is None:
        return "another" if "str" in str(hint) else 77
    return f"{value}x"


def effects(config: Config) -> dict[str, Change]:
    """What applying a config does while every job of the real run is running and has records."""
    before = plan.build(real(), "rel")
    statuses = {job.name: JobStatus(job.name, JobState.RUNNING, attempt=1) for job in before.jobs}
    made = dict.fromkeys(statuses, 100)
    return {change.job: change for change in changes(before, plan.build(config, "rel"), statuses, made)}


def hashes(made: Plan) -> dict[str, tuple[str, str]]:
    return {job.name: (job.content_hash, job.inputs_hash) for job in made.jobs}


LIVE_KEYS = dict(variants(real(), "live"))
RUN_KEYS = dict(variants(real(), "run"))


@pytest.mark.parametrize("key", LIVE_KEYS)
def test_a_live_key_restarts_nothing(key: str) -> None:
    assert {change.effect for change in effects(LIVE_KEYS[key]).values()} <= {"nothing", "live"}


def test_policy_keys_are_live_and_reach_the_jobs() -> None:
    jobs = {"prep": "prep:B2", "serve": "serve:baseline", "dedup": "dedup", "generate": "generate", "merge": "merge"}
    for stage, job in jobs.items():
        keys = [key for key in LIVE_KEYS if key.startswith(f"policy.{stage}.")]
        assert len(keys) >= 9
        for key in keys:
            assert effects(LIVE_KEYS[key])[job].effect == "live", key


@pytest.mark.parametrize("key", [key for key in RUN_KEYS if key != "generate.servers"])
def test_a_run_key_makes_no_records_useless(key: str) -> None:
    """``generate.servers`` decides whether there is a server job at all."""
    assert hashes(plan.build(RUN_KEYS[key], "rel")) == hashes(plan.build(real(), "rel"))
