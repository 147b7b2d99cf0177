"""Which deaths by SIGKILL are laid to the kernel: those that its count moved for, just then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest

from pipeline.agent import endings
from pipeline.agent.attempts.attempt_files import write_exit
from pipeline.agent.attempts.records import Exit
from pipeline.agent.attempts.run import Ending, Run
from pipeline.agent.board import Board, Death, Job
from pipeline.agent.host.senses import Senses
from pipeline.agent.store import Store
from pipeline.protocol import JobSpec, JobState, JobStatus, Readiness, RestartPolicy


class Scene:
    """Attempts in a container whose count of kills is a file; times are seconds from now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counter = folder / "memory.events"
        self.senses = Senses(folder)
        self.now = time.monotonic()

    def count(self, kills: int) -> None:
        self.counter.write_text(f"oom 9\noom_kill {kills}\n")

    def attempt(self, name: str, began: float) -> Run:
        folder = self.folder / name
        folder.mkdir()
        return Run(name, 1, "rel", folder, began=self.now + began, oom_counter=str(self.counter))

    def sampled(self, run: Run, at: float) -> None:
        """As if the newest reading had been taken then."""
        self.senses.tick((run,))
        readings = self.senses._kills[str(self.counter)]
        readings[-1] = (self.now + at, readings[-1][1])

    def death(self, run: Run, before: int, after: int, others: tuple[Run, ...] = ()) -> tuple[str, tuple[str, ...]]:
        record = self.record(before, after)
        job = Job(JobSpec(run.job, "demo", ("x",)), JobStatus(run.job, JobState.RUNNING), run=run)
        deaths = (Death(run.job, run.number, self.now, run.oom_counter),)
        found = endings.judge(self.senses, job, run, Ending(exit=record), record, deaths, others)
        assert found.state is JobState.FAILED and found.diagnosis is not None
        return found.diagnosis.cause, found.diagnosis.evidence

    def record(self, before: int, after: int) -> Exit:
        moment = (time.time(), self.now)
        return Exit(None, SIGKILL, moment, moment, oom_before=before, oom_after=after)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.senses.close()


def test_a_kill_that_moved_the_count_just_then_was_the_kernels(scene: Scene) -> None:
    run = scene.attempt("a", -9000)
    scene.count(4)
    scene.sampled(run, -1.5)
    cause, evidence = scene.death(run, 0, 5)
    assert cause == "oom" and "cgroup oom_kill 4→5" in evidence


def test_a_kill_of_another_job_days_before_explains_nothing(scene: Scene) -> None:
    run = scene.attempt("a", -9000)
    scene.count(5)
    scene.sampled(run, -1.5)
    cause, evidence = scene.death(run, 0, 5)
    assert cause == "sigkill" and "cgroup oom_kill 5→5" in evidence


def test_a_reading_after_the_kill_is_not_taken_for_one_before(scene: Scene) -> None:
    run = scene.attempt("a", -9000)
    scene.count(4)
    scene.sampled(run, -2.0)
    scene.count(5)
    scene.sampled(run, -0.2)
    assert scene.death(run, 0, 5)[0] == "oom"


def test_taking_down_much_memory_takes_time(scene: Scene) -> None:
    run = scene.attempt("a", -9000)
    run.peak = 60_000_000_000
    scene.count(4)
    scene.sampled(run, -8.0)
    scene.count(5)
    scene.sampled(run, -3.0)
    assert scene.death(run, 0, 5)[0] == "oom"


def test_a_short_life_is_its_own_window(scene: Scene) -> None:
    assert scene.death(scene.attempt("a", -0.5), 4, 5)[0] == "oom"


def test_a_count_that_nobody_watched_proves_little(scene: Scene) -> None:
    cause, evidence = scene.death(scene.attempt("a", -9000), 4, 5)
    assert cause == "probable-oom" and any("counted over 2 h" in line for line in evidence)


def test_more_deaths_than_kills_are_probable_only(scene: Scene) -> None:
    run, other = scene.attempt("a", -9000), scene.attempt("b", -9000)
    scene.count(4)
    scene.sampled(run, -1.5)
    record = scene.record(4, 5)
    write_exit(str(other.folder), {name: getattr(record, name) for name in Exit.__dataclass_fields__})
    cause, evidence = scene.death(run, 0, 5, (run, other))
    assert cause == "probable-oom" and "2 jobs died of SIGKILL meanwhile" in evidence
    # One that an operator had killed is no other death.
    other.stop_by = "alice"
    assert scene.death(run, 0, 5, (run, other))[0] == "oom"


@pytest.mark.parametrize(("ready_at", "counted"), [(None, 2), (-10.0, 2), (-400.0, 1)])
def test_a_servers_healthy_time_begins_when_it_answers(tmp_path: Path, ready_at: float | None, counted: int) -> None:
    """A load of half an hour that ends in a crash must not make its restarts count from one again, for ever."""
    now = time.monotonic()
    board = Board(Store(tmp_path / "journal.db"), "boot")
    spec = JobSpec(
        "s", "serve", ("x",), service=True, readiness=Readiness("http://127.0.0.1:1", "m"),
        restart=RestartPolicy(healthy_s=300.0, window_s=7200.0),
    )  # fmt: skip
    job = Job(spec, JobStatus("s", JobState.FAILED, "port in use", attempt=2), restarts=(now - 2000.0,))
    run = Run("s", 2, "rel", tmp_path, began=now - 1900.0, ready_at=None if ready_at is None else now + ready_at)
    record = Exit(1, None, (time.time(), now), (time.time(), now))
    assert endings.follow_up(board, job, run, record) is not None
    assert len(job.restarts) == counted
    assert f"({counted} of 5)" in job.status.reason and job.status.state is JobState.BACKOFF
    board.store.close()
