"""What the agent promises, as a model: where every job comes to rest after what was done to it.

It knows no processes, files or times. ``machine`` does the same to this model and to a real agent, and compares. Each
method is one thing that can happen; ``settle`` is all that follows from it by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from pipeline.protocol import JobSpec, JobState, Need

S = JobState
RUNS: Final = (S.RUNNING, S.READY)
PENDING: Final = (S.WAITING, S.QUEUED)
FAILURES: Final = (S.FAILED, S.EMPTY, S.LOST, S.STOPPED)
"""What a need on a job cannot get over, unless somebody waives it."""

EMPTY_CODE: Final = 3
"""Exit code of a stage that made no records."""


@dataclass(frozen=True)
class End:
    """How an attempt ended: its exit code or signal; neither where its shim had been killed, so that nobody saw it."""

    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Past:
    """An attempt as the journal must have it: how it ended, and what that was judged to be."""

    end: End
    state: JobState


@dataclass
class ModelJob:
    """A job at rest."""

    spec: JobSpec
    state: JobState = S.WAITING
    wanted: bool = True  # False: nothing but an operator starts it
    stopped_by: str = ""
    waived: str = ""
    restarts: int = 0  # by itself, since somebody last started it
    attempted: bool = False
    end: End = End()  # of its last attempt
    result: int | None = None  # records, as the last attempt that ended said
    said_result: int | None = None  # as the newest attempt says
    said_progress: int = 0

    @property
    def runs(self) -> bool:
        return self.state in RUNS

    @property
    def memory(self) -> int:
        return self.spec.resources.memory or 0

    @property
    def records(self) -> int:
        """What would be discarded if the job's content changed."""
        return self.result or (self.said_progress if self.said_result is None else self.said_result)


@dataclass
class Model:
    """The jobs of one plan, in its order. ``capacity`` is the memory they share."""

    capacity: int
    jobs: dict[str, ModelJob] = field(default_factory=dict)
    past: dict[str, list[Past]] = field(default_factory=dict)
    """Ended attempts by job, oldest first. A job that left the plan keeps them, should it come back."""

    # --- what an operator does ---

    def start(self, name: str) -> None:
        """A job that runs or is about to is left alone."""
        job = self.jobs[name]
        if not job.runs and not (job.state in PENDING and job.wanted):
            _anew(job)

    def stop(self, name: str, by: str, end: End) -> None:
        """``end`` is how its process ends, if it has one. A job that has ended stays as it is."""
        job = self.jobs[name]
        if job.runs:
            job.wanted = False
            self._end_asked(job, by, end)
        elif job.state in PENDING:
            job.state, job.wanted, job.stopped_by = S.STOPPED, False, by

    def restart(self, name: str, by: str, end: End) -> None:
        job = self.jobs[name]
        if job.runs:
            self._end_asked(job, by, end)
            job.state, job.restarts = S.WAITING, 0
        else:
            self.start(name)

    def restart_with_dependents(self, name: str, by: str, ends: Mapping[str, End]) -> None:
        """All behind it restart too, but for what was stopped or has still to begin."""
        begun = [one for one in self.behind(name) if self.jobs[one].wanted and self.jobs[one].state not in PENDING]
        for one in (name, *begun):
            self.restart(one, by, ends[one])

    def waive(self, name: str, reason: str) -> bool:
        """Let others go on without a job that failed; False for any other."""
        job = self.jobs[name]
        if job.state in FAILURES:
            job.waived = reason
        return job.state in FAILURES

    def restart_crashed(self) -> None:
        for job in self.jobs.values():
            if job.state in (S.FAILED, S.EMPTY, S.LOST):
                _anew(job)

    # --- what a plan does ---

    def effect(self, new: JobSpec) -> str:
        """What applying a plan does to one of its jobs."""
        job = self.jobs.get(new.name)
        if job is None:
            return "new"
        if job.spec.content_hash != new.content_hash and job.records:
            return "discards"
        if (job.spec.content_hash, job.spec.inputs_hash) != (new.content_hash, new.inputs_hash) and job.attempted:
            return "restarts"
        if job.spec == new:
            return "nothing"
        return "restarts" if job.runs and job.spec.argv != new.argv else "live"

    def apply(self, plan: list[JobSpec], confirm: Set[str], by: str, ends: Mapping[str, End]) -> bool:
        """Follow a plan; False, and nothing done, where a job would discard records and is not named in ``confirm``."""
        effects = {spec.name: self.effect(spec) for spec in plan}
        if any(effect == "discards" and name not in confirm for name, effect in effects.items()):
            return False
        for name, job in self.jobs.items():
            if name not in effects and job.runs:
                self._end_asked(job, by, ends[name])
        jobs = {}
        for spec in plan:
            new = ModelJob(spec, S.WAITING if spec.autostart else S.STOPPED, wanted=spec.autostart)
            job = self.jobs.get(spec.name, new)
            job.spec = spec
            if effects[spec.name] in ("restarts", "discards") and job.wanted:
                if job.runs:
                    self._end_asked(job, by, ends[spec.name])
                    job.state, job.restarts = S.WAITING, 0
                else:
                    _anew(job)
            jobs[spec.name] = job
        self.jobs = jobs
        return True

    # --- what happens to a job ---

    def ended(self, name: str, end: End, *, begun: bool = True) -> None:
        """Nobody asked for it: the restart policy says what follows. Not ``begun``: its program was never executed."""
        job = self.jobs[name]
        policy = job.spec.restart
        self._conclude(job, end, _verdict(job, end) if begun else S.FAILED)
        final = job.state is S.EMPTY or (end.code in policy.no_retry and job.state is not S.DONE)
        if final or policy.when == "never" or (policy.when == "on-failure" and job.state is S.DONE):
            return
        if job.restarts < policy.limit:
            job.state, job.restarts = S.WAITING, job.restarts + 1
        else:
            job.state = S.FAILED  # gave up

    def _end_asked(self, job: ModelJob, by: str, end: End) -> None:
        job.stopped_by = by
        self._conclude(job, end, S.STOPPED)

    def _conclude(self, job: ModelJob, end: End, state: JobState) -> None:
        job.state, job.end, job.result = state, end, job.said_result
        self.past.setdefault(job.spec.name, []).append(Past(end, state))

    # --- what follows by itself ---

    def settle(self, running: Set[str]) -> None:
        """Start what may start. Where memory is too small for all, the agent chooses: ``running`` are its choice."""
        order = sorted(self.jobs.values(), key=lambda job: job.spec.name not in running)
        while job := next((job for job in order if self._may_start(job)), None):
            job.state = S.READY if job.spec.service else S.RUNNING
            job.attempted, job.end, job.said_result, job.said_progress = True, End(), None, 0
        for job in order:
            if job.wanted and job.state in PENDING:
                job.state = S.QUEUED if self.needs_hold(job.spec.needs) else S.WAITING

    def _may_start(self, job: ModelJob) -> bool:
        fits = sum(other.memory for other in self.jobs.values() if other.runs) + job.memory <= self.capacity
        return job.wanted and job.state in PENDING and self.needs_hold(job.spec.needs) and fits

    def behind(self, name: str) -> list[str]:
        """Jobs that need this one, themselves or through others."""
        found = [name]
        for other in found:
            needing = [one for one, job in self.jobs.items() if other in {need.job for need in job.spec.needs}]
            found += [one for one in needing if one not in found]
        return found[1:]

    def needs_hold(self, needs: tuple[Need, ...]) -> bool:
        return all(
            self.jobs[need.job].waived
            or self.jobs[need.job].state is (S.READY if need.condition == "ready" else S.DONE)
            for need in needs
        )


def _anew(job: ModelJob) -> None:
    """Somebody wants it to run: what was counted and waived before is forgotten."""
    job.state, job.wanted, job.waived, job.restarts, job.result = S.WAITING, True, "", 0, None


def _verdict(job: ModelJob, end: End) -> JobState:
    """Zero records are a failure whatever the exit code says; a service that ends by itself has failed."""
    if end == End():
        return S.LOST
    if job.said_result == 0 and end.code in (0, EMPTY_CODE):
        return S.EMPTY
    return S.DONE if end.code == 0 and not job.spec.service else S.FAILED
