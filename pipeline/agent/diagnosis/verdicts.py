"""What a diagnosis is made of: a state, a reason short enough for a table cell, evidence and advice in plain lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipeline.agent.attempts.logs import plain
from pipeline.agent.diagnosis.evidence import Evidence
from pipeline.agent.diagnosis.known_errors import Cause
from pipeline.agent.diagnosis.log_causes import LogEnd
from pipeline.protocol import Diagnosis, JobState

REASON_LIMIT: Final = 120
FACT_LIMIT: Final = 300

Verdict = tuple[JobState, str, Diagnosis | None]
Rule = Callable[[Evidence, LogEnd], Verdict | None]


def verdict(state: JobState, cause: str, reason: str, facts: tuple[str, ...], advice: str) -> Verdict:
    """One with a diagnosis; a fact that is empty or there twice is left out."""
    evidence = tuple(dict.fromkeys(one_line(fact) for fact in facts if fact))
    return state, reason, Diagnosis(cause, one_line(reason), evidence, advice)


def failed(cause: str, reason: str, facts: tuple[str, ...], advice: str) -> Verdict:
    return verdict(JobState.FAILED, cause, reason, facts, advice)


def from_log(evidence: Evidence, cause: Cause, *more: str) -> Verdict:
    """Failed of an error that is known."""
    return failed(cause.key, cause.reason, (cause.seen, *more, evidence.ending), cause.advice)


def facts_of(evidence: Evidence, log: LogEnd) -> tuple[str, ...]:
    """What is known of any end: how it ended, its memory, what it said of its work, the last line of its log."""
    last = f"last line of its log: {log.last}" if log.last else ""
    return (evidence.ending, *evidence.last_memory, *evidence.reported, last)


def one_line(text: str, limit: int = FACT_LIMIT) -> str:
    """One plain line of at most ``limit`` characters."""
    text = " ".join(plain(text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
