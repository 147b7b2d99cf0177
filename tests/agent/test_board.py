"""The state of all jobs: changes as a whole or not at all, and beats without old figures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.agent.actions import act
from pipeline.agent.attempts.run import Run
from pipeline.agent.board import Board, Job
from pipeline.agent.host.senses import Seen
from pipeline.agent.store import Store
from pipeline.agent.watching import judge_stall, take
from pipeline.protocol import STALE_S, ActionRequest, JobSample, JobSpec, JobState, JobStatus, Plan, ServerSample

S = JobState


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(Store(tmp_path / "journal.db"), "boot")
    spec = JobSpec("a", "prep", ("x",), stall_s=5.0)
    job = Job(spec, JobStatus("a", S.RUNNING, attempt=1))
    job.run = Run("a", 1, "rel", tmp_path)
    made.jobs["a"] = job
    made.save(job)
    yield made
    made.store.close()


def test_a_change_that_cannot_be_journaled_leaves_everything_as_it_was(board: Board) -> None:
    job = board.jobs["a"]
    run = job.run
    assert run is not None
    board.tell("agent", "one")
    before, asked = replace(job), replace(run)
    with pytest.raises(OSError, match="disk"), board.transaction():
        board.take_plan(Plan("run", "rel", (job.spec,)))
        act(board, job, "kill", ActionRequest("alice", "r1"))
        board.jobs["b"] = Job(replace(job.spec, name="b"), JobStatus("b", S.WAITING))
        assert (job.wanted, run.stop_by, run.kill) == ("stop", "alice", True)
        job.run = None
        raise OSError("the disk is full")
    assert (job, run) == (before, asked) and job.run is run
    assert board.plan is None and list(board.jobs) == ["a"]
    assert [event.text for event in board.events] == ["one"]
    board.tell("agent", "two")
    assert [event.seq for event in board.events] == [1, 2] == [event.seq for event in board.store.events(0, 10)]


def test_what_was_asked_of_an_attempt_is_known_to_the_next_agent(board: Board, tmp_path: Path) -> None:
    act(board, board.jobs["a"], "kill", ActionRequest("alice", "r1"))
    run = Run("a", 1, "rel", tmp_path)
    Board(board.store, "boot").recall(run)
    assert (run.stop_by, run.kill, run.again) == ("alice", True, False)


def test_old_figures_are_not_in_a_beat(board: Board) -> None:
    job = board.jobs["a"]
    take(board, {"a": Seen(JobSample(cpu_percent=50.0, memory=7, last_line="x"), 0.0)})
    job.server, job.server_at = ServerSample("answers", ready=True, tok_s=830.0), time.monotonic()
    sample = board.beat().jobs["a"]
    assert sample.cpu_percent == 50.0 and sample.server == job.server
    board.looked_at -= STALE_S + 1
    job.server_at -= STALE_S + 1
    sample = board.beat().jobs["a"]
    assert (sample.cpu_percent, sample.memory, sample.last_line) == (None, None, "x")
    assert sample.server is not None and sample.server.tok_s is None and "not answered for 7 s" in sample.server.step


def test_a_job_that_was_stalled_goes_on_only_when_it_was_seen_to(board: Board) -> None:
    job = board.jobs["a"]
    judge_stall(board, job, Seen(JobSample(), 6.0))
    assert board.statuses()["a"].state is S.STALLED and job.status.reason == "no progress for 6 s"
    # A new agent has a new reader, which has been quiet for no time.
    judge_stall(board, job, Seen(JobSample(), 0.5, advanced=False))
    assert board.statuses()["a"].state is S.STALLED
    judge_stall(board, job, Seen(JobSample(), 0.5))
    assert board.statuses()["a"].state is S.RUNNING
