"""Datasets, servers and inference, derived from the rows of the jobs. Text in them is already safe to draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from console.view.jobs import WHY_LIMIT, JobRow
from console.view.text import clean
from pipeline.protocol import DatasetCount, Eta, History, JobState, ServerSample

NOT_SAMPLED: Final = "not sampled"
"""The reason prep gives for rows beyond those that were asked for."""

SURELY: Final = 64
"""Rows dropped before a set that has kept none is called empty while it is still being read."""


@dataclass(frozen=True)
class DatasetRow:
    """One dataset: its rows as prep counted them, and how many of its prompts are answered."""

    name: str
    job: str
    state: JobState
    read: int = 0
    kept: int = 0
    dropped: int = 0
    reasons: tuple[tuple[str, int], ...] = ()  # most frequent first, what was not sampled last
    tokens: int = 0
    total: int | None = None
    rate: float | None = None  # rows per second
    eta: Eta | None = None
    answered: int | None = None
    to_answer: int | None = None
    of_answers: tuple[tuple[str, int], ...] = ()  # prompts set aside and faulty answers, by what is wrong, most first
    reported: bool = False
    before: bool = False  # the counts are of the attempt before

    @property
    def lost(self) -> int:
        """Rows dropped for what is in them."""
        return self.dropped - dict(self.reasons).get(NOT_SAMPLED, 0)

    @property
    def going_to_zero(self) -> bool:
        """Whether rows are read and none is kept: the set will come out empty."""
        return self.state is JobState.RUNNING and not self.kept and self.lost >= SURELY and not self.before

    @property
    def share(self) -> float | None:
        if self.state is JobState.DONE:
            return 1.0
        return min(1.0, self.read / self.total) if self.total else None


@dataclass(frozen=True)
class ServerRow:
    """One model server: how far up the readiness ladder it is, and its own figures."""

    job: str
    state: JobState
    step: str
    sample: ServerSample | None
    up_s: float | None


@dataclass(frozen=True)
class Inference:
    """Generation as a whole. Figures are None where the stage has not reported them."""

    job: str
    state: JobState
    tok_s: float | None = None
    req_s: float | None = None
    mean_tokens: float | None = None
    in_flight: float | None = None
    errors: float | None = None
    retries: float | None = None
    done: float | None = None
    total: float | None = None
    share: float | None = None
    eta: Eta | None = None
    why: str = ""
    before: bool = False  # the figures are of the attempt before
    slots: float | None = None  # where they follow the servers' load
    servers: tuple[tuple[str, float, float, float], ...] = ()  # name, tokens a second, in flight, losses
    history: History = field(default_factory=lambda: History("", "", (), ()))


def dataset_rows(jobs: Sequence[JobRow]) -> tuple[DatasetRow, ...]:
    """A row a dataset in the order of the prep jobs; answers are those that a generate job counts.

    What dedup drops of a set's records counts as dropped, once it is through with them.
    """
    answers: dict[str, DatasetCount] = {}
    left: dict[str, DatasetCount] = {}
    for row in jobs:
        if row.stage == "generate":
            answers.update(_counts(row))
        elif row.stage == "dedup" and row.result is not None and not row.live:
            left.update(row.result.datasets)
    found = []
    for row in jobs:
        if row.stage != "prep":
            continue
        counts = _counts(row)
        if not counts:
            found.append(DatasetRow(name=row.name.partition(":")[2] or row.name, job=row.name, state=row.state))
        for name, counted in counts.items():
            after = _after_dedup(counted, left.get(name))
            found.append(_dataset(name, row, after, answers.get(name), len(counts) == 1))
    return tuple(found)


def _counts(row: JobRow) -> Mapping[str, DatasetCount]:
    """The result's counts where the job is done, else those of its newest progress."""
    if row.result is not None and row.result.datasets and not row.live:
        return row.result.datasets
    return row.progress.datasets if row.progress is not None else {}


def _after_dedup(counted: DatasetCount, left: DatasetCount | None) -> DatasetCount:
    """A prep's counts with what dedup dropped of its records; as they are where it has seen other ones."""
    if left is None or left.read != counted.kept:
        return counted
    dropped = {
        reason: counted.dropped.get(reason, 0) + left.dropped.get(reason, 0)
        for reason in {**counted.dropped, **left.dropped}
    }
    return replace(counted, kept=left.kept, dropped=dropped, tokens=left.tokens)


def _dataset(name: str, row: JobRow, counted: DatasetCount, answers: DatasetCount | None, alone: bool) -> DatasetRow:
    # Rows that were left out on purpose must not hide why others were lost.
    reasons = sorted(counted.dropped.items(), key=lambda item: (item[0] == NOT_SAMPLED, -item[1]))
    return DatasetRow(
        name=clean(name, 40),
        job=row.name,
        state=row.state,
        read=counted.read,
        kept=counted.kept,
        dropped=sum(counted.dropped.values()),
        reasons=tuple((clean(reason, WHY_LIMIT), rows) for reason, rows in reasons),
        tokens=counted.tokens,
        total=counted.total,
        rate=(row.progress.figures.get("rows_s", row.rate) if row.progress else row.rate)
        if alone and row.live and not row.before
        else None,
        eta=row.eta if alone else None,
        answered=answers.kept if answers else None,
        to_answer=answers.total if answers else None,
        of_answers=_wrong(answers) if answers else (),
        reported=True,
        before=row.before,
    )


def _wrong(answers: DatasetCount) -> tuple[tuple[str, int], ...]:
    counts = Counter(answers.dropped) + Counter(answers.faulty)
    return tuple((clean(reason, WHY_LIMIT), rows) for reason, rows in counts.most_common())


def server_rows(jobs: Sequence[JobRow]) -> tuple[ServerRow, ...]:
    return tuple(
        ServerRow(
            job=row.name,
            state=row.state,
            step=clean(row.server.step, 200) if row.server and row.live else "",
            sample=row.server if row.live else None,
            up_s=row.up_s,
        )
        for row in jobs
        if row.stage == "serve" or row.server is not None
    )


def _by_server(figures: Mapping[str, float]) -> tuple[tuple[str, float, float, float], ...]:
    """Where there are several servers, each one's share of the work."""
    names = [key.removeprefix("tok_s: ") for key in figures if key.startswith("tok_s: ")]
    return tuple(
        (
            clean(name, 60),
            figures[f"tok_s: {name}"],
            figures.get(f"in_flight: {name}", 0.0),
            figures.get(f"losses: {name}", 0.0),
        )
        for name in names
    )


def inference(jobs: Sequence[JobRow], history: Mapping[tuple[str, str], History]) -> Inference | None:
    """The generate job that runs, else the one that ran last; None where the plan has none."""
    rows = [row for row in jobs if row.stage == "generate"]
    if not rows:
        return None
    row = max(rows, key=lambda each: (each.live, each.started_at or 0.0))
    figures = row.progress.figures if row.progress else {}
    server = next((each.server for each in jobs if each.server is not None and each.live), None)
    now = figures if row.live and not row.before else {}
    return Inference(
        job=row.name,
        state=row.state,
        tok_s=now.get("tok_s", server.tok_s if server and row.live else None),
        req_s=now.get("req_s"),
        mean_tokens=figures.get("mean_tokens"),
        in_flight=now.get("in_flight"),
        errors=figures.get("errors"),
        retries=figures.get("retries"),
        slots=now.get("slots"),
        servers=_by_server(now),
        done=row.done,
        total=row.total,
        share=row.share,
        eta=row.eta,
        why=row.why,
        before=row.before,
        history=history.get((row.name, "tok_s"), History(row.name, "tok_s", (), ())),
    )
