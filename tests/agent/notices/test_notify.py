"""Which events become a message, and what it says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.agent.notices.notify import PENDING, Judge, Message, Note, Pending, compose, laid_out
from pipeline.protocol import Diagnosis, Event, JobSpec, JobState, JobStatus, Result

S = JobState
OOM = Diagnosis("oom", "killed by the kernel", advice="give it more memory")


class Journal:
    """Events in order, as the board makes them, and the notes that remain of them."""

    def __init__(self, *specs: JobSpec) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.statuses = {spec.name: JobStatus(spec.name, S.WAITING) for spec in specs}
        self.judge = Judge()
        self.pending = Pending()
        self.seq = 0
        self.at = 1_700_000_000.0
        self.by = ""  # who does what happens

    def add(self, event: Event) -> None:
        self.seq += 1
        for note in self.judge.take(replace(event, seq=self.seq, at=self.at), self.specs, self.statuses):
            self.pending.put(note)

    def set(self, name: str, state: JobState, reason: str = "", **fields: object) -> None:
        self.statuses[name] = replace(self.statuses[name], state=state, reason=reason, **fields)  # type: ignore[arg-type]
        self.add(Event(0, 0.0, "state", "", name, self.by, self.statuses[name]))

    def crash(self, name: str, attempt: int, cause: str = "oom") -> None:
        """What the agent journals when a job that is restarted crashes."""
        diagnosis = Diagnosis(cause, cause)
        self.set(name, S.FAILED, cause, attempt=attempt, diagnosis=diagnosis)
        self.set(name, S.BACKOFF, f"{cause}; starts again now", attempt=attempt, diagnosis=diagnosis)

    def told(self) -> list[str]:
        """The notes so far; they are then settled."""
        texts = [note.text for note in self.pending.notes()]
        self.pending.settle(self.seq)
        return texts


def job(name: str, **fields: object) -> JobSpec:
    return JobSpec(name, name.partition(":")[0], ("true",), **fields)  # type: ignore[arg-type]


def test_an_end_is_told_with_reason_and_advice() -> None:
    journal = Journal(job("prep:B4"), job("prep:B5"), job("prep:B6"))
    journal.set("prep:B4", S.FAILED, "OOM-killed at 61 GB", attempt=1, diagnosis=OOM)
    journal.set("prep:B5", S.EMPTY, "0 of 114,000: no user turn", attempt=1)
    journal.set("prep:B6", S.LOST, "container restarted", attempt=1)
    assert journal.told() == [
        "prep:B4 failed: OOM-killed at 61 GB → give it more memory",
        "prep:B5 came out empty: 0 of 114,000: no user turn",
        "prep:B6 was lost: container restarted",
    ]


def test_what_an_operator_did_and_what_only_goes_on_is_not_told() -> None:
    journal = Journal(job("prep:B4"), job("prep:B5"))
    for state in (S.QUEUED, S.STARTING, S.RUNNING, S.STOPPING, S.STOPPED):
        journal.set("prep:B4", state, attempt=1)
    journal.add(Event(0, 0.0, "agent", "agent 7 is there"))
    journal.add(Event(0, 0.0, "action", "stopping prep:B4", by="ana"))
    journal.set("prep:B5", S.DONE)  # its stage is not: the other was stopped
    assert journal.told() == []


def test_a_crash_that_is_restarted_is_one_line() -> None:
    journal = Journal(job("prep:B4"))
    journal.crash("prep:B4", 1)
    assert journal.told() == ["prep:B4: oom; starts again now"]


def test_a_crash_loop_is_told_ever_more_rarely_and_at_its_end() -> None:
    journal = Journal(job("prep:B4"))
    told = []
    for attempt in range(1, 21):
        journal.at += 60
        journal.crash("prep:B4", attempt)
        told += [(attempt, text) for text in journal.told()]
    assert [attempt for attempt, _ in told] == [1, 4, 16]
    assert told[1][1].endswith("(4 times by now)")
    journal.set("prep:B4", S.FAILED, "oom", attempt=21, diagnosis=OOM)
    journal.set("prep:B4", S.FAILED, "gave up after 20 restarts within 60 min; last: oom", attempt=21, diagnosis=OOM)
    assert journal.told() == [
        "prep:B4 failed: gave up after 20 restarts within 60 min; last: oom → give it more memory"
    ]


def test_another_cause_and_a_crash_much_later_are_news() -> None:
    journal = Journal(job("prep:B4"))
    journal.crash("prep:B4", 1)
    journal.crash("prep:B4", 2, "traceback")
    journal.crash("prep:B4", 3, "traceback")
    journal.at += 86_400
    journal.crash("prep:B4", 4)
    assert len(journal.told()) == 3


def test_a_job_that_is_queued_with_more_memory_is_one_line() -> None:
    journal = Journal(job("prep:B4"))
    journal.set("prep:B4", S.FAILED, "OOM-killed at 61 GB", attempt=1, diagnosis=OOM)
    journal.set("prep:B4", S.QUEUED, "OOM-killed at 61 GB; need 61 GB→92 GB", attempt=1)
    assert journal.told() == ["prep:B4: OOM-killed at 61 GB; need 61 GB→92 GB"]
    journal.set("prep:B4", S.RUNNING, attempt=2)
    journal.set("prep:B4", S.QUEUED, "waits for GPUs", attempt=2)  # its diagnosis is an old one's
    assert journal.told() == []


def test_waiving_a_failure_is_no_failure_but_may_end_the_run() -> None:
    journal = Journal(job("prep:A1"), job("prep:B1"))
    journal.set("prep:A1", S.DONE, result=Result(0.0, 7, "7 kept"))
    journal.set("prep:B1", S.FAILED, "gated", attempt=1)
    assert journal.told() == ["prep:B1 failed: gated"]
    journal.by = "ana"
    journal.set("prep:B1", S.FAILED, "gated", waived="no access")
    assert journal.told() == [
        "prep is done: 1 of 2 jobs, 7 records, the others failed and were waived", "the run is done: 2 jobs",
    ]  # fmt: skip


def test_a_stall_and_its_end() -> None:
    journal = Journal(job("generate"))
    journal.set("generate", S.RUNNING, attempt=1)
    journal.set("generate", S.STALLED, "no progress for 46 min")
    assert journal.told() == ["generate stalled: no progress for 46 min"]
    journal.set("generate", S.RUNNING, "makes progress again")
    journal.set("generate", S.RUNNING)
    assert journal.told() == ["generate makes progress again"]
    journal.set("generate", S.STALLED, "no progress for 46 min")
    journal.set("generate", S.RUNNING)
    assert journal.told() == []  # it flaps


def test_a_stage_and_the_run_are_told_when_all_their_jobs_are_done() -> None:
    journal = Journal(job("prep:A1"), job("prep:B1"), job("serve:baseline", service=True), job("merge"))
    result = Result(0.0, 2800, "2,800 of 2,809 kept")
    journal.set("prep:A1", S.DONE, result=result)
    assert journal.told() == []
    journal.set("serve:baseline", S.READY)
    journal.set("prep:B1", S.DONE, result=result)
    assert journal.told() == ["prep is done: 2 of 2 jobs, 5,600 records"]
    journal.set("merge", S.DONE, result=Result(0.0, 5600, "5,600 samples"))
    assert [note.alarm for note in journal.pending.notes()] == [False, False]
    assert journal.told() == ["merge is done: 5,600 samples", "the run is done: 3 jobs"]


def test_a_waived_failure_does_not_hold_up_its_stage() -> None:
    journal = Journal(job("prep:A1"), job("prep:B1"), job("merge"))
    journal.set("prep:B1", S.FAILED, "gated", waived="no access", attempt=1)
    journal.told()
    journal.set("prep:A1", S.DONE)
    assert journal.told() == ["prep is done: 1 of 2 jobs, 0 records, the others failed and were waived"]


def test_trouble_of_the_host_is_told() -> None:
    journal = Journal()
    journal.add(Event(0, 0.0, "host", "disk is short: 3 GB left"))
    journal.add(Event(0, 0.0, "host", "the disk is no longer short: 30 GB left"))
    assert [note.alarm for note in journal.pending.notes()] == [True, False]
    assert journal.told() == ["disk is short: 3 GB left", "the disk is no longer short: 30 GB left"]


def test_control_characters_of_a_job_do_not_come_through() -> None:
    journal = Journal(job("prep:B4"))
    journal.set("prep:B4", S.FAILED, "a\x1b]0;title\x07\x1b[31mred\nnext\u202egnp", attempt=1)
    assert journal.told() == ["prep:B4 failed: ared nextgnp"]


def test_the_newest_are_kept_and_the_others_counted() -> None:
    pending = Pending()
    for seq in range(1, PENDING + 31):
        pending.put(Note((str(seq),), seq, 0.0, f"note {seq}"))
    assert len(pending) == PENDING and pending.dropped == 30
    assert pending.notes()[0].text == "note 31"
    pending.settle(PENDING + 29)
    assert [note.seq for note in pending.notes()] == [PENDING + 30] and not pending.dropped


def test_what_a_message_says() -> None:
    notes = (
        Note(("a",), 1, 50_000.0, "merge is done", alarm=False),
        Note(("b",), 2, 50_060.0, "prep:B4 failed: oom"),
    )
    message = compose("kimi", "gpu-3", notes, 50_100.0, earlier=3, repeat=True)
    assert message.title == "kimi on gpu-3: prep:B4 failed: oom and 1 more"
    assert message.lines == (
        "(this may have been sent before)", "13:53 UTC merge is done", "13:54 UTC prep:B4 failed: oom",
    )  # fmt: skip
    assert message.alarm and message.earlier == 3
    assert compose("kimi", "gpu-3", notes[:1], 50_100.0).alarm is False
    # Told late, a time needs its day.
    assert compose("kimi", "gpu-3", notes[:1], 250_000.0).lines == ("01 Jan 13:53 UTC merge is done",)
    long = compose("k" * 64, "h" * 64, (Note(("a",), 1, 0.0, "x" * 5000),), 0.0)
    assert len(long.title) < 200 and len(long.lines[0]) == 300


LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=300), max_size=60)


@given(LINES, st.integers(0, 5), st.integers(400, 4000))
def test_a_text_is_never_too_long_and_says_what_it_leaves_out(lines: list[str], earlier: int, limit: int) -> None:
    text = laid_out(Message("t", tuple(lines), earlier), limit, lambda part: len(part.encode()))
    assert len(text.encode()) <= limit
    if earlier or text != "\n".join(lines):
        first, *kept = text.split("\n")
        assert kept == lines[len(lines) - len(kept) :]
        assert first == f"({earlier + len(lines) - len(kept)} earlier ones left out)"
