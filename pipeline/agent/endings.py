"""What the end of an attempt means: its verdict, and whether the job starts again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from signal import SIGKILL
from typing import Final

from pipeline.agent.attempts import job_cgroup
from pipeline.agent.attempts.attempt_files import oom_kills
from pipeline.agent.attempts.records import Exit, read_exit
from pipeline.agent.attempts.run import Ending, Run
from pipeline.agent.board import Board, Death, Job
from pipeline.agent.diagnosis.causes import Evidence, diagnose
from pipeline.agent.host import cgroups
from pipeline.agent.host.gpu_faults import near
from pipeline.agent.host.senses import Remains, Senses
from pipeline.agent.rules import policy
from pipeline.agent.rules.admission import in_words
from pipeline.agent.rules.admitting import Lesson
from pipeline.agent.rules.full_disks import Filled, disks_of, for_room, fullest, need_after, says_so
from pipeline.protocol import Diagnosis, JobState

SAMPLE_S: Final = 1.0
CHILD_S: Final = 10.0
"""A parent may notice so late that the kernel has killed its child."""
TEARDOWN: Final = 10e9  # bytes a second


def unstarted(error: str) -> Exit:
    """The exit record of an attempt whose job never ran."""
    return Exit(None, None, _now(), _now(), error=error)


def record_of(ending: Ending) -> Exit:
    """The exit record of an ending; one that knows nothing where the end was not seen."""
    unseen = Exit(None, None, _now(), _now(), left_over=ending.left_over)
    return ending.exit or (unstarted(ending.void) if ending.void else unseen)


def left_over(run: Run, record: Exit) -> str:
    """What was ended after the main process, in words."""
    count, shown = len(record.left_over), "; ".join(record.left_over[:3])
    rest = " …" if count > 3 else ""
    return f"{run.job}: its main process left {count} other{'s' if count > 1 else ''} behind, ended: {shown}{rest}"


def _now() -> tuple[float, float]:
    return time.time(), time.monotonic()


def killed(run: Run, record: Exit) -> bool:
    """Whether it died of a SIGKILL that nobody here asked for."""
    return SIGKILL in (record.signal, (record.exit_code or 0) - 128) and not (run.stop_by or record.asked)


@dataclass(frozen=True)
class Judgement:
    """What an attempt left, its final state, reason in words and diagnosis, and whose deaths may share its cause."""

    left: Remains
    state: JobState
    reason: str
    diagnosis: Diagnosis | None
    beside: frozenset[tuple[str, int]] = frozenset()  # job, attempt
    filled: Filled | None = None  # the disk that was full, where it ended for want of space


def judge(
    senses: Senses, job: Job, run: Run, ending: Ending, record: Exit, deaths: tuple[Death, ...], others: tuple[Run, ...]
) -> Judgement:
    """Judge an attempt that has ended. For the thread of the senses.

    ``deaths`` are the newest by SIGKILL, this one among them; ``others`` are the attempts not yet concluded.
    """
    left = senses.remains(run)
    if ending.shim_lost:  # what the shim would have read; a cgroup of its own begins with no kills
        after = oom_kills(run.oom_counter) if run.cgroup else None
        record = replace(record, oom_before=0, oom_after=after, cgroup_peak=job_cgroup.peak(run.cgroup))
    if run.cgroup and record.oom_after is not None:
        senses.count_kills(run, record.oom_after)
    run.peak = run.peak or min(record.max_rss, record.cgroup_peak or record.max_rss)
    counted_at, before = _kills_before(senses, job, run, record)
    died = record.main_exited[1]
    evidence = Evidence(
        spec=job.spec,
        exit_code=record.exit_code,
        signal=record.signal,
        log_tail=left.log_tail,
        result=left.result,
        progress=left.progress,
        oom_before=before,
        oom_after=record.oom_after,
        oom_window_s=max(0.0, died - counted_at),
        oom_own=bool(run.cgroup),
        gpu_faults=near(senses.gpus.faults(), senses.gpus.devices(job.spec), run.began or died, died),
        stopped_by=run.stop_by,
        stopped_at=run.stop_at,
        stop_kill=run.kill,
        condemned=run.condemned,
        unhealthy=run.unhealthy,
        shim_lost=ending.shim_lost,
        record_torn=ending.torn,
        container_restarted=bool(ending.container),
        last_sample=job.sample,
        peak=run.peak or None,
        cgroup_peak=record.cgroup_peak,
        error=record.error,
    )
    evidence, filled = _with_disks(senses, run, left, evidence)
    beside: set[tuple[str, int]] = set()
    if evidence.oom_kills and not evidence.oom_own:
        beside = _killed_since(counted_at, run.oom_counter, deaths, others)
        evidence = replace(evidence, sigkills=max(1, len(beside)))
    # The shim removes it, unless it died first.
    job_cgroup.remove(run.cgroup or (cgroups.place(run.folder)["cgroup"] if ending.exit is None else ""))
    state, reason, diagnosis = diagnose(evidence)
    if diagnosis is None or diagnosis.cause != "probable-oom":
        beside = set()
    if diagnosis is None or diagnosis.cause != "disk-full":
        filled = None
    return Judgement(left, state, ending.container or reason, diagnosis, frozenset(beside), filled)


def unjudged(record: Exit, error: Exception) -> Judgement:
    """Of an attempt whose remains could not be looked at."""
    how = f"signal {record.signal}" if record.signal is not None else f"exit code {record.exit_code}"
    reason = f"{how}; what it left cannot be read: {error or type(error).__name__}"
    return Judgement(Remains(b"", 0, None, None), JobState.FAILED, reason, None)


def _with_disks(senses: Senses, run: Run, left: Remains, evidence: Evidence) -> tuple[Evidence, Filled | None]:
    """The evidence with what the job's disks say, and the disk that was low."""
    if evidence.exit_code == 0:
        return evidence, None
    told, alone = says_so(left.log_tail, evidence.error, evidence.result.message if evidence.result else "")
    if not told and evidence.exit_code is None:
        return evidence, None
    filled = fullest(disks_of(senses.disks, run.folder, left.log_tail))
    if filled is None:
        return replace(evidence, enospc=alone), None
    return replace(evidence, enospc=told, filled=filled.words, brim=filled.brim), filled


def _kills_before(senses: Senses, job: Job, run: Run, record: Exit) -> tuple[float, int | None]:
    """The kernel's count before the attempt died, and when it was read: at the last sample, else at the start."""
    began = run.began if run.began is not None else record.main_exited[1]
    patience = SAMPLE_S if killed(run, record) and not job.spec.service else CHILD_S
    # The kernel counts when it kills; the process ends when its memory has been taken down.
    seen = senses.kills_before(run, record.main_exited[1] - patience - run.peak / TEARDOWN)
    return seen if seen is not None and seen[0] > began else (began, record.oom_before)


def _killed_since(
    moment: float, counter: str, deaths: tuple[Death, ...], others: tuple[Run, ...]
) -> set[tuple[str, int]]:
    """Attempts counted there that died of SIGKILL since then, those that no one has concluded yet included."""
    found = {(death.job, death.number) for death in deaths if death.at >= moment and death.counter == counter}
    for run in others:
        record = read_exit(run.folder) if run.oom_counter == counter else None
        if record is not None and killed(run, record) and record.main_exited[1] >= moment:
            found.add((run.job, run.number))
    return found


def doubt(board: Board, beside: frozenset[tuple[str, int]], but: tuple[str, int]) -> None:
    """Take back certainty from earlier verdicts: the kernel's count moved less than there were deaths (``beside``).

    ``but`` is the attempt that is being judged.
    """
    for name, number in sorted(beside - {but}):
        job = board.jobs.get(name)
        diagnosis = job.status.diagnosis if job is not None else None
        if job is None or diagnosis is None or diagnosis.cause != "oom" or _judged(job) != number:
            continue
        fact = f"{len(beside)} jobs died of SIGKILL meanwhile"
        summary = f"probably {diagnosis.summary}"
        reason = job.status.reason
        doubted = replace(
            diagnosis, cause="probable-oom", summary=summary, evidence=(*diagnosis.evidence, fact)
        )  # fmt: skip
        for attempt in board.store.attempts(name):
            if attempt.number == number:
                board.store.set_attempt(name, replace(attempt, reason=f"probably {attempt.reason}"), ended=True)
        board.set(
            job, job.status.state, f"probably {reason}" if reason.startswith(diagnosis.summary) else reason,
            text=f"{name}: {summary}: {fact}", diagnosis=doubted,
        )  # fmt: skip


def _judged(job: Job) -> int:
    """The attempt that the job's diagnosis is of."""
    return job.status.attempt if job.run is None else job.status.attempt - 1


def follow_up(
    board: Board, job: Job, run: Run, record: Exit, lesson: Lesson | None = None, filled: Filled | None = None
) -> float | None:
    """Give an ended job the state it goes on in; seconds until it starts again, None where it does not by itself."""
    before, job.disk = job.disk, None
    if run.again and not job.removed:
        board.set(job, JobState.WAITING, "")
        return 0.0
    if run.stop_by or run.condemned or job.wanted != "run" or job.removed:
        return None
    if lesson is not None and job.spec.restart.when != "never":
        return _with_more(board, job, lesson)
    if filled is not None and job.spec.restart.when != "never":
        job.disk = need_after(filled, before)
        words = for_room(job.disk, board.spaces.get(job.disk.path)) or "there is room again"
        board.set(job, JobState.QUEUED, f"{job.status.reason}; {words}")
        return 0.0
    now = time.monotonic()
    ran_s = _ran_well_s(job, run, record)
    chance = random.random()  # noqa: S311 - spreads restarts, guards nothing
    code = None if run.unhealthy else record.exit_code  # how it took our signal is no verdict of its own
    found = policy.after_end(job.spec.restart, job.status.state, code, job.restarts, ran_s, now, chance)
    if isinstance(found, policy.Stay):
        if found.gave_up:
            board.set(job, JobState.FAILED, f"{found.gave_up}; last: {job.status.reason}")
        elif found.final:
            board.set(job, job.status.state, f"{job.status.reason}; {found.final}")
        return None
    job.restarts, job.due = found.restarts, now + found.delay_s
    when = f"in {found.delay_s:.0f} s" if found.delay_s >= 1 else "now"
    count = f"{len(job.restarts)} of {job.spec.restart.limit}"
    words = f"{job.status.reason or job.status.state}; starts again {when} ({count})"
    board.set(job, JobState.BACKOFF, words, restarts=job.status.restarts + 1)
    return found.delay_s


def _with_more(board: Board, job: Job, lesson: Lesson) -> float | None:
    """Queue a job again that the kernel killed for memory; each time it is granted more, until there is no more."""
    if lesson.need is None:
        board.set(job, JobState.FAILED, f"gave up: {job.status.reason}, and this host has no more for it")
        return None
    grows = f"need {in_words(lesson.had)}→{in_words(lesson.need)}"
    board.set(job, JobState.QUEUED, f"{job.status.reason}; {grows}", restarts=job.status.restarts + 1)
    return 0.0


def _ran_well_s(job: Job, run: Run, record: Exit) -> float:
    """Seconds that count as healthy. A server's begin when it answers: a load that takes long proves nothing."""
    if run.unhealthy:
        return 0.0
    since = run.began if job.spec.readiness is None else run.ready_at
    return 0.0 if since is None else max(0.0, record.tree_empty[1] - since)
