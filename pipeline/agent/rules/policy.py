"""Decisions as pure functions: does a job start again, are its needs met, what does a new plan change.

Times are monotonic seconds of one boot, so a stepped wall clock changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.protocol import JobSpec, JobState, JobStatus, RestartPolicy

JITTER: Final = 0.25
FAILED_NEED: Final = {
    JobState.FAILED: "which failed",
    JobState.EMPTY: "which made no records",
    JobState.LOST: "whose end was not seen",
    JobState.STOPPED: "which was stopped",
}


@dataclass(frozen=True)
class Again:
    """Start the job again after ``delay_s``; ``restarts`` are the times of restarts that still count, this one too."""

    delay_s: float
    restarts: tuple[float, ...]


@dataclass(frozen=True)
class Stay:
    """Leave the job as it ended. ``gave_up``: its restarts are used up; ``final``: its exit code is not tried again."""

    gave_up: str = ""
    final: str = ""


def after_end(
    policy: RestartPolicy,
    state: JobState,
    exit_code: int | None,
    restarts: tuple[float, ...],
    ran_s: float,
    now: float,
    chance: float,
) -> Again | Stay:
    """What follows the end of an attempt nobody asked to end.

    ``restarts`` are the times of earlier ones, ``ran_s`` is how long the attempt ran well, ``chance`` in 0..1 spreads
    the delay.
    """
    if policy.when == "never" or (policy.when == "on-failure" and state is JobState.DONE):
        return Stay()
    if state is JobState.EMPTY:
        return Stay()
    if exit_code in policy.no_retry and state is not JobState.DONE:
        return Stay(final=f"exit code {exit_code} is not tried again")
    counted = () if ran_s >= policy.healthy_s else tuple(at for at in restarts if now - policy.window_s < at <= now)
    if len(counted) >= policy.limit:
        plural = "" if len(counted) == 1 else "s"
        return Stay(f"gave up after {len(counted)} restart{plural} within {policy.window_s / 60:.0f} min")
    return Again(backoff(policy, len(counted), chance), (*counted, now))


def backoff(policy: RestartPolicy, restarts: int, chance: float) -> float:
    """Seconds before the next start after ``restarts`` earlier ones: none, then doubling, never over the cap."""
    if restarts == 0:
        return 0.0
    doubled = policy.backoff_s * 2.0 ** min(restarts - 1, 60)
    return min(policy.backoff_max_s, doubled * (1 - JITTER + 2 * JITTER * chance))


def dependents(job: str, specs: Mapping[str, JobSpec]) -> tuple[str, ...]:
    """The jobs behind ``job``: those that need it, directly or through others, in the plan's order."""
    behind = {job}
    while more := {name for name, spec in specs.items() if behind & {need.job for need in spec.needs}} - behind:
        behind |= more
    return tuple(name for name in specs if name in behind and name != job)


def unmet(spec: JobSpec, jobs: Mapping[str, JobStatus], specs: Mapping[str, JobSpec]) -> str:
    """Why the needs of a job are not met, in words; "" when they are."""
    failed: list[str] = []
    pending: list[str] = []
    for need in spec.needs:
        status = jobs.get(need.job)
        if status is None:
            failed.append(f"{need.job}, which is not in the plan")
        elif status.waived or status.state is (JobState.READY if need.condition == "ready" else JobState.DONE):
            continue
        elif status.state in FAILED_NEED:
            failed.append(f"{need.job}, {FAILED_NEED[status.state]}")
        elif status.state is JobState.DONE:
            failed.append(f"{need.job}, which ended")
        elif status.state is JobState.STALLED:
            pending.append(f"{need.job}, which is stalled")
        else:
            root = _failed_root(need.job, jobs, specs, frozenset({spec.name}))
            pending.append(f"{need.job}, behind {root}" if root else need.job)
    blocked = failed + sorted(pending, key=lambda text: ", " not in text)
    if not blocked:
        return ""
    return "waits for " + _listed(blocked)


def _failed_root(job: str, jobs: Mapping[str, JobStatus], specs: Mapping[str, JobSpec], seen: frozenset[str]) -> str:
    """The failed job that a waiting job is behind, in words; "" when there is none."""
    status, spec = jobs.get(job), specs.get(job)
    if status is None or spec is None or status.state is not JobState.WAITING or job in seen:
        return ""
    for need in spec.needs:
        other = jobs.get(need.job)
        if other is None or other.waived:
            continue
        if other.state in FAILED_NEED:
            return f"{need.job}, {FAILED_NEED[other.state]}"
        root = _failed_root(need.job, jobs, specs, seen | {job})
        if root:
            return root
    return ""


def _listed(parts: list[str]) -> str:
    shown = parts if len(parts) <= 3 else [*parts[:2], f"{len(parts) - 2} more"]
    mark = "; " if any(", " in part for part in shown) else ", "
    last = "; and " if mark == "; " else " and "
    return shown[0] if len(shown) == 1 else f"{mark.join(shown[:-1])}{last}{shown[-1]}"
