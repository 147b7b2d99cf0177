"""The frozen snapshot that every pane and every report draws from."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from console.view import rows
from console.view.jobs import JobRow, job_rows, longest, run_time
from pipeline.protocol import (
    STALE_S,
    AgentInfo,
    Beat,
    Event,
    History,
    HostSample,
    JobStatus,
    Plan,
    Progress,
)

EVENTS_KEPT: Final = 500
GAPS_KEPT: Final = 20


class Tone(enum.StrEnum):
    """What a figure means to the operator. Never shown by colour alone: a glyph or a word goes with it."""

    GOOD = "good"
    BUSY = "busy"
    IDLE = "idle"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class LinkView:
    """How the wire to the host stands. ``since`` is by ``console.clock``; ``detail`` says what is tried.

    ``host_key``: fingerprint of a key seen for the first time, which the operator may accept; never of a changed one.
    """

    state: Literal["connecting", "live", "lost", "refused"] = "connecting"
    since: float = 0.0
    detail: str = ""
    host_key: str = ""


@dataclass(frozen=True)
class Gap:
    """A time in which nothing came from the agent, and what was caught up with after it.

    ``pruned`` events of that time were too old to be kept by the agent.
    """

    at: float  # the container's wall clock when all was known again
    seconds: float
    events: int
    pruned: int = 0


@dataclass(frozen=True)
class Snapshot:
    """Everything the panes show, made by ``console.view.fold``; what follows from facts is computed once, when asked.

    ``received`` is when the newest word from the agent came, by ``console.clock``; None before the first. ``at`` is
    the container's wall clock at that word: durations are measured against it, so they stand still when data is old.
    """

    run: str
    host_label: str
    link: LinkView = LinkView()
    received: float | None = None
    at: float = 0.0
    seq: int = 0
    agent: AgentInfo | None = None
    plan: Plan | None = None
    statuses: Mapping[str, JobStatus] = field(default_factory=dict)
    beat: Beat | None = None
    reported: Mapping[str, Progress] = field(default_factory=dict)  # by job: the newest it ever gave
    events: tuple[Event, ...] = ()  # newest first
    gaps: tuple[Gap, ...] = ()  # newest first
    history: Mapping[tuple[str, str], History] = field(default_factory=dict)  # by job and figure

    def age(self, now: float) -> float | None:
        """Seconds since the newest word from the agent; None before the first."""
        return None if self.received is None else max(0.0, now - self.received)

    def stale(self, now: float) -> bool:
        """True where there is data and it is too old to be trusted."""
        age = self.age(now)
        return age is not None and age > STALE_S

    @property
    def host(self) -> HostSample | None:
        return self.beat.host if self.beat else None

    @cached_property
    def jobs(self) -> tuple[JobRow, ...]:
        """A row a job, in plan order; jobs that left the plan but still have a status come last."""
        return job_rows(self.plan, self.statuses, self.beat.jobs if self.beat else {}, self.reported, self.at)

    @cached_property
    def datasets(self) -> tuple[rows.DatasetRow, ...]:
        return rows.dataset_rows(self.jobs)

    @cached_property
    def servers(self) -> tuple[rows.ServerRow, ...]:
        return rows.server_rows(self.jobs)

    @cached_property
    def inference(self) -> rows.Inference | None:
        return rows.inference(self.jobs, self.history)

    @cached_property
    def run_time(self) -> float | None:
        """Seconds from the first start of a job until now, or until the last end where nothing is left to do."""
        return run_time(self.jobs, self.at)

    @cached_property
    def longest(self) -> JobRow | None:
        """The live job that will take longest, which is what the run waits for; None where no ETA is known."""
        return longest(self.jobs)

    def job(self, name: str) -> JobRow | None:
        """The row of a job by its exact name."""
        return next((row for row in self.jobs if row.name == name), None)
