"""What a run of generate left behind: its own report of it, and the answers themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from benchmarks.sglang.place import Place
from pipeline.progress import parse_line
from pipeline.protocol import Progress

FULL_SLOTS: Final = 0.98
"""Share of the slots in flight while the run is neither beginning nor ending."""


@dataclass(frozen=True)
class OurRun:
    """An attempt of generate. ``seconds``: from its first request to its last answer on disk."""

    seconds: float
    answered: int
    tokens: int
    tok_s: float
    retries: int
    finish: dict[str, int]


@dataclass(frozen=True)
class Kill:
    """The server's SIGKILL, by the wall clock of the machine; seconds count from it."""

    at: float
    ready_again_s: float
    answers_again_s: float
    answered_before: int
    tok_s_before: float  # while all slots were full


def once_each(place: Place, dataset: str) -> Counter[str]:
    """The finish reasons of a dataset's answers. Raises AssertionError unless every prompt has exactly one, whole."""
    asked = [msgspec.json.decode(line) for line in place.records(dataset).read_bytes().splitlines()]
    keys = {f"{one['dataset']}/{one['row']}/{one['hash']}": len(one["prompt_ids"]) for one in asked}
    answers = [msgspec.json.decode(line) for line in place.answers(dataset).read_bytes().splitlines()]
    assert len(keys) == len(asked) == place.scale.prompts, f"{len(keys)} prompts"
    assert Counter(one["key"] for one in answers) == Counter(list(keys)), "not every prompt has exactly one answer"
    for one in answers:
        assert one["prompt_tokens"] == keys[one["key"]], one["key"]
        assert len(one["output_ids"]) == one["completion_tokens"] > 0, one["key"]
    return Counter(one["finish"] for one in answers)


def our_run(place: Place, dataset: str, attempt: int) -> OurRun:
    """What an attempt did that answered this dataset alone."""
    last = [one for one in reports(place, attempt) if one.figures][-1]
    tok_s, count = last.figures["tok_s_mean"], last.datasets[dataset]
    return OurRun(
        seconds=round(count.tokens / tok_s, 2),
        answered=count.kept,
        tokens=count.tokens,
        tok_s=round(tok_s, 1),
        retries=int(last.figures["retries"]),
        finish=dict(once_each(place, dataset)),
    )


def kill_seen(place: Place, dataset: str, attempt: int, at: float, ready_again_at: float) -> Kill:
    """What the kill cost, from the attempt's own reports."""
    found = [one for one in reports(place, attempt) if dataset in one.datasets]
    before, after = [one for one in found if one.at <= at], [one for one in found if one.at > at]
    full = [one for one in before if one.figures.get("in_flight", 0) >= FULL_SLOTS * place.scale.concurrency]
    # Answers on their way to the disk at the kill count as before it.
    stood = max(one.datasets[dataset].kept for one in after if one.at < ready_again_at)
    again = next(one for one in after if one.datasets[dataset].kept > stood)
    tokens = full[-1].datasets[dataset].tokens - full[0].datasets[dataset].tokens
    return Kill(
        at=at,
        ready_again_s=round(ready_again_at - at, 2),
        answers_again_s=round(again.at - at, 2),
        answered_before=stood,
        tok_s_before=round(tokens / (full[-1].at - full[0].at), 1),
    )


def reports(place: Place, attempt: int) -> list[Progress]:
    """Every progress line of an attempt of generate, in order."""
    path = place.workdir / "jobs" / "generate" / str(attempt) / "progress.jsonl"
    lines = [parse_line(line) for line in path.read_bytes().splitlines()]
    return [one.progress for one in lines if one is not None and one.progress is not None]
