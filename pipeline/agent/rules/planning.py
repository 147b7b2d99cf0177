"""What a plan must hold to be accepted, and what applying it would change. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pipeline.protocol import LIVE, Change, JobSpec, JobState, JobStatus, Plan, Progress

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
SECRET: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
PROCESS_FIELDS: Final = ("argv", "env", "secrets", "oom_score_adj", "service")
"""What a running process was given and keeps; every other field takes effect on a running job."""

AGENT_KEYS: Final = {"run": "run.name", "reserve_memory": "resources.reserve"}
"""By field of a plan: the config's key. Those of [notify] and [disk] are called alike."""


def faults(plan: Plan) -> list[str]:
    """What is wrong with a plan, each in a line that names the job."""
    names = [job.name for job in plan.jobs]
    found = [f"{name}: two jobs have this name" for name in sorted({name for name in names if names.count(name) > 1})]
    for job in plan.jobs:
        if not NAME.fullmatch(job.name):
            found.append(f"{job.name!r}: a job's name is 1 to 64 letters, digits and . _ : -, and begins with no mark")
        if not job.argv:
            found.append(f"{job.name}: argv is empty")
        if any("\0" in part for part in (*job.argv, *job.env, *job.env.values())):
            found.append(f"{job.name}: argv or env holds a NUL character")
        if any(not key or "=" in key for key in job.env):
            found.append(f"{job.name}: env holds an empty name or one with '='")
        found += [
            f"{job.name}: needs {need.job}, which is not in the plan" for need in job.needs if need.job not in names
        ]
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", plan.release) or plan.release.startswith("."):
        found.append(f"release {plan.release!r} is no release's name")
    for name in (plan.notify.webhook, plan.notify.heartbeat):
        if name and not SECRET.fullmatch(name):
            found.append(f"notify names {name!r}, which is no secret's name: letters, digits and _")
    return found or _cycles(plan)


def _cycles(plan: Plan) -> list[str]:
    left = {job.name: {need.job for need in job.needs} for job in plan.jobs}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    return [f"the needs of {', '.join(sorted(left))} form a circle"] if left else []


def records_of(status: JobStatus | None, progress: Progress | None) -> int:
    """Records a job has made so far, as its result or its newest progress says."""
    if status is not None and status.result is not None:
        return status.result.records
    if progress is None:
        return 0
    kept = sum(count.kept for count in progress.datasets.values())
    return kept or (int(progress.done) if progress.unit == "records" else 0)


def changes(
    old: Plan | None, new: Plan, jobs: Mapping[str, JobStatus], records: Mapping[str, int]
) -> tuple[Change, ...]:
    """What applying ``new`` does to each job. ``records`` holds what each job has made."""
    before = {job.name: job for job in old.jobs} if old is not None else {}
    after = {job.name for job in new.jobs}
    moved = old is not None and old.release != new.release
    found = [
        _change(before.get(job.name), job, jobs.get(job.name), records.get(job.name, 0), moved) for job in new.jobs
    ]
    for name in before:
        if name not in after:
            live = name in jobs and jobs[name].state in LIVE
            found.append(Change(name, "removed", "is stopped" if live else ""))
    return tuple(found)


def settings(old: Plan | None, new: Plan) -> tuple[str, ...]:
    """What a plan changes for the agent itself, by the config's keys."""
    if old is None:
        return ()
    found = [key for name, key in AGENT_KEYS.items() if getattr(old, name) != getattr(new, name)]
    for section in ("notify", "disk"):
        before, after = getattr(old, section), getattr(new, section)
        names = (name for name in after.__dataclass_fields__ if getattr(before, name) != getattr(after, name))
        found += [f"{section}.{name.removesuffix('_s')}" for name in names]
    return tuple(found)


def _change(old: JobSpec | None, new: JobSpec, status: JobStatus | None, records: int, moved: bool) -> Change:
    if old is None or status is None:
        return Change(new.name, "new")
    live = status.state in LIVE
    if old.content_hash != new.content_hash:
        if records:
            return Change(new.name, "discards", f"{records:,} records were made with other settings", records)
        if live or status.attempt:
            return Change(new.name, "restarts", "what it writes changes")
    if old.inputs_hash != new.inputs_hash and (live or status.attempt):
        return Change(new.name, "restarts", "its inputs change; keeps what still fits")
    if old == new:
        keeps = "keeps its release until it starts again" if moved and live else ""
        return Change(new.name, "nothing", keeps)
    changed = [name for name in JobSpec.__dataclass_fields__ if getattr(old, name) != getattr(new, name)]
    detail = "changes " + ", ".join(changed)
    if live and any(name in PROCESS_FIELDS for name in changed):
        return Change(new.name, "restarts", f"{detail}; resumes")
    return Change(new.name, "live", detail if live else f"{detail}; used at the next start")


def refusal(found: tuple[Change, ...], confirm: tuple[str, ...]) -> str:
    """Why the changes may not be made yet; "" when they may."""
    missing = [f"{change.job} ({change.records:,} records)" for change in found if change.effect == "discards"]
    named = [change.job for change in found if change.effect == "discards" and change.job not in confirm]
    if not named:
        return ""
    return f"would discard records of {', '.join(missing)}; confirm by naming {', '.join(named)}"


def fresh_status(spec: JobSpec, now: float) -> JobStatus:
    """The status of a job that has never started."""
    if spec.autostart:
        return JobStatus(spec.name, JobState.WAITING, "", now)
    return JobStatus(spec.name, JobState.STOPPED, "starts only when asked to", now)
