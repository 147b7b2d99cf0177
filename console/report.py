"""A snapshot without a screen: as text, as JSON, as a Markdown summary, and as an exit code.

``now`` is monotonic seconds, the clock of ``Snapshot.received``; None is the moment of the agent's newest word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import msgspec

from console.view import Attention, Snapshot, attention
from console.view import format as fmt
from console.view.attention import dependents, disk_words
from console.view.jobs import JobRow
from console.view.rows import DatasetRow, Inference
from console.view.text import cells, clean, cut, padded
from pipeline.protocol import History, JobState

WELL: Final = 0
"""Nothing needs a person."""

CRASHED: Final = 1
"""At least one job is failed, empty or lost and not waived, or failed and about to start again."""

UNREACHABLE: Final = 3
"""The host refused, the link is down, or the agent's last word is too old. (2 is left to wrong arguments.)"""

STALLED: Final = 4
"""No job crashed, at least one makes no progress."""

NO_PLAN: Final = 5
"""The agent answers, and has no plan."""

EVENTS_SHOWN: Final = 20


def exit_code(snapshot: Snapshot, now: float | None = None) -> int:
    """What scripts may act on: one of the codes above. Data that cannot be trusted says nothing about the jobs."""
    now = _moment(snapshot, now)
    if snapshot.link.state in ("lost", "refused") or snapshot.received is None or snapshot.stale(now):
        return UNREACHABLE
    if any(row.failure for row in snapshot.jobs):
        return CRASHED
    if any(row.state is JobState.STALLED for row in snapshot.jobs):
        return STALLED
    return NO_PLAN if snapshot.plan is None else WELL


def _moment(snapshot: Snapshot, now: float | None) -> float:
    """The time a report is made at; without one, that of the agent's newest word."""
    if now is not None:
        return now
    return snapshot.link.since if snapshot.received is None else snapshot.received


# --- Text -----------------------------------------------------------------------------------------------------------


def status_text(snapshot: Snapshot, now: float | None = None) -> str:
    """The overview for a terminal without a screen: what needs a person, the jobs, host, datasets, inference."""
    now = _moment(snapshot, now)
    said = attention(snapshot, now)
    lines = [
        f"{clean(snapshot.run, 80)} @ {clean(snapshot.host_label, 80)}   {_freshness(snapshot, now)}",
        f"{said.text}{f'   [{said.keys}]' if said.keys else ''}",
    ]
    if snapshot.jobs:
        lines += ["", *_job_table(snapshot.jobs)]
    if snapshot.host is not None:
        lines += ["", *_host(snapshot)]
    if snapshot.datasets:
        lines += ["", *_dataset_table(snapshot.datasets)]
    if snapshot.inference is not None and snapshot.inference.done is not None:
        lines += ["", f"inference  {_inference(snapshot.inference)}"]
    return "\n".join(lines) + "\n"


def _freshness(snapshot: Snapshot, now: float) -> str:
    parts: list[str] = []
    age = snapshot.age(now)
    if age is None:
        parts.append(snapshot.link.state)
    else:
        word = "stale" if snapshot.stale(now) else snapshot.link.state.replace("connecting", "live")
        parts.append(f"{word}, {fmt.age(age)} old")
    if snapshot.run_time is not None:
        parts.append(f"run {fmt.duration(snapshot.run_time)}")
    slow = snapshot.longest
    if slow is not None:
        parts.append(f"ETA {fmt.eta(slow.eta)} {slow.name}")
    return "   ".join(parts)


def _job_table(jobs: Iterable[JobRow]) -> list[str]:
    rows: list[tuple[str, ...]] = [("job", "state", "time", "restarts", "cpu", "mem", "done", "eta", "why")]
    rows += [
        (
            row.name,
            str(row.state),
            fmt.short_duration(row.up_s) if row.up_s is not None else "",
            str(row.restarts or ""),
            "" if row.cpu_percent is None else f"{row.cpu_percent:.0f} %",
            "" if row.memory is None else fmt.size(row.memory),
            "" if row.share is None or row.service else fmt.percent(row.share),
            fmt.eta(row.eta) if row.eta else "",
            f"waived: {row.waived} · {row.why}" if row.crashed and row.waived else row.why,
        )
        for row in jobs
    ]
    return _aligned(rows, left=(0, 1, 8))


def _dataset_table(datasets: Iterable[DatasetRow]) -> list[str]:
    rows: list[tuple[str, ...]] = [("dataset", "state", "read", "kept", "dropped", "answered", "why dropped")]
    rows += [
        (
            row.name,
            str(row.state),
            fmt.count(row.read) if row.reported else "",
            fmt.count(row.kept) if row.reported else "",
            fmt.count(row.dropped) if row.reported else "",
            f"{fmt.count(row.answered)} of {fmt.count(row.to_answer)}" if row.to_answer else "",
            _reasons(row),
        )
        for row in datasets
    ]
    return _aligned(rows, left=(0, 1, 6))


def _reasons(row: DatasetRow) -> str:
    dropped = ", ".join(f"{reason} {fmt.count(rows)}" for reason, rows in row.reasons[:3])
    answers = ", ".join(f"{reason} {fmt.count(rows)}" for reason, rows in row.of_answers[:3])
    return " · ".join(part for part in (dropped, answers and f"answers: {answers}") if part)


def _aligned(rows: list[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    widths = [max(cells(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            padded(cell, width, right=column not in left)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _host(snapshot: Snapshot) -> list[str]:
    host = snapshot.host
    if host is None:
        return []
    pressure = f", some {host.memory_some:.0f} %" if host.memory_some is not None else ""
    kills = f", OOM kills {host.oom_kills}" if host.oom_kills is not None else ""
    lines = [
        f"memory  {fmt.size_of(host.memory_used, host.memory_limit)} ({host.memory_source}){pressure}{kills}",
        f"cpu     {host.cpu_percent:.0f} % of {host.cpus} cores",
        f"disk    {disk_words(host)} (of {fmt.size(host.disk_total)})",
    ]
    for gpu in host.gpus:
        warm = f", {gpu.temperature:.0f} °C" if gpu.temperature is not None else ""
        power = f", {gpu.power:.0f} W" if gpu.power is not None else ""
        memory = fmt.size_of(gpu.memory_used, gpu.memory_total)
        lines.append(f"GPU {gpu.index}   {gpu.utilisation:.0f} %, {memory}{warm}{power}")
    lines += [f"note    {clean(remark, 300)}" for remark in host.remarks]
    return lines


def _inference(figure: Inference) -> str:
    before = " before the restart" if figure.before else ""
    parts = [f"{fmt.count(figure.done)} of {fmt.count(figure.total)} answered ({fmt.percent(figure.share)}){before}"]
    if figure.tok_s is not None:
        parts.append(f"{fmt.number(figure.tok_s)} tok/s")
    if figure.req_s is not None:
        parts.append(f"{fmt.number(figure.req_s)} requests/s")
    if figure.mean_tokens is not None:
        parts.append(f"mean answer {fmt.number(figure.mean_tokens)} tokens")
    if figure.in_flight is not None:
        parts.append(f"{fmt.count(figure.in_flight)} in flight")
    if figure.errors is not None:
        parts.append(f"{fmt.count(figure.errors)} errors" if figure.errors else "no errors")
    if figure.eta is not None:
        basis = f", from {clean(figure.eta.basis, 200)}" if figure.eta.basis else ""
        parts.append(f"ETA {fmt.eta(figure.eta)}{basis}")
    return ", ".join(parts)


# --- JSON -----------------------------------------------------------------------------------------------------------


def status_json(snapshot: Snapshot, now: float | None = None) -> str:
    """The same as one JSON object. Sizes are bytes, durations seconds, times seconds since the epoch."""
    now = _moment(snapshot, now)
    said: Attention = attention(snapshot, now)
    figure = snapshot.inference
    found: dict[str, Any] = {
        "run": snapshot.run,
        "host": snapshot.host_label,
        "exit_code": exit_code(snapshot, now),
        "attention": said,
        "link": {
            "state": snapshot.link.state,
            "for_s": max(0.0, now - snapshot.link.since),
            "detail": snapshot.link.detail,
        },
        "age_s": snapshot.age(now),
        "stale": snapshot.stale(now),
        "at": snapshot.at or None,
        "run_time_s": snapshot.run_time,
        "eta": snapshot.longest.eta if snapshot.longest else None,
        "agent": snapshot.agent,
        "jobs": snapshot.jobs,
        "datasets": snapshot.datasets,
        "servers": snapshot.servers,
        "inference": None if figure is None else replace(figure, history=History(figure.job, "tok_s", (), ())),
        "machine": snapshot.host,
        "disk_left_s": snapshot.host.disk_left_s if snapshot.host else None,
        "events": snapshot.events[:EVENTS_SHOWN],
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


# --- Markdown -------------------------------------------------------------------------------------------------------


def report_markdown(snapshot: Snapshot, now: float | None = None) -> str:
    """A summary for those who do not sit at the console: how it stands, problems, counts, what runs, what is next."""
    now = _moment(snapshot, now)
    made = fmt.clock(snapshot.at, "%Y-%m-%d %H:%M") if snapshot.at else "no data"
    jobs = snapshot.jobs
    lines = [
        f"# {_md(snapshot.run) or 'Run'}: status",
        "",
        f"{made}, {_md(_freshness(snapshot, now).replace('   ', ', '))}. **{_md(attention(snapshot, now).text)}**",
    ]
    if jobs:
        lines += ["", _standing(jobs)]
    lines += _section("Problems", _problems(snapshot))
    lines += _section("Running", (_running(row) for row in jobs if row.live))
    figure = snapshot.inference
    if figure is not None and figure.done is not None:
        lines += _section("Inference", [f"{_md(_inference(figure))}."])
    lines += _section("Datasets", _dataset_markdown(snapshot.datasets))
    done = [row for row in jobs if row.state is JobState.DONE and row.stage != "prep"]
    lines += _section("Done", (f"- `{_code(row.name)}` {_md(row.why)}" for row in done))
    lines += _section("Next", _next(jobs))
    return "\n".join(lines) + "\n"


def _standing(jobs: tuple[JobRow, ...]) -> str:
    """How many jobs are in which state, in one sentence."""
    by_state = Counter(row.state for row in jobs)
    rest = [f"{number} {state}" for state in JobState if (number := by_state[state]) and state is not JobState.DONE]
    others = f" The others: {', '.join(rest)}." if rest else ""
    return f"{by_state[JobState.DONE]} of {len(jobs)} jobs are done.{others}"


def _section(title: str, body: Iterable[str]) -> list[str]:
    body = list(body)
    return ["", f"## {title}", "", *body] if body else []


def _running(row: JobRow) -> str:
    parts = [f"{row.state}, for {fmt.duration(row.up_s)}"]
    if row.share is not None:
        parts.append(fmt.percent(row.share))
    if row.eta is not None:
        parts.append(f"ETA {fmt.eta(row.eta)}")
    why = f": {_md(row.why)}" if row.why else ""
    return f"- `{_code(row.name)}` {', '.join(parts)}{why}"


def _dataset_markdown(datasets: tuple[DatasetRow, ...]) -> list[str]:
    if not datasets:
        return []
    rows = [
        "| dataset | state | read | kept | dropped | why dropped | answered |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for row in datasets:
        answered = f"{fmt.count(row.answered)} of {fmt.count(row.to_answer)}" if row.to_answer else ""
        counts = (fmt.count(each) if row.reported else "" for each in (row.read, row.kept, row.dropped))
        rows.append(f"| {_md(row.name)} | {row.state} | {' | '.join(counts)} | {_md(_reasons(row))} | {answered} |")
    kept, read = sum(row.kept for row in datasets), sum(row.read for row in datasets)
    dropped = sum(row.dropped for row in datasets)
    return [*rows, f"| **all** | | {fmt.count(read)} | {fmt.count(kept)} | {fmt.count(dropped)} | | |"]


def _problems(snapshot: Snapshot) -> Iterable[str]:
    for row in sorted(snapshot.jobs, key=lambda each: not each.failure):
        again = row.restarts > 0 and row.live
        if not row.crashed and not again and row.state not in (JobState.STALLED, JobState.QUEUED):
            continue
        if row.state is JobState.QUEUED and row.diagnosis is None:
            continue
        held = 0 if again or row.waived else len(dependents(row.name, snapshot.jobs))
        waits = f" ({held} job{'s wait' if held > 1 else ' waits'} for it)" if held else ""
        came_back = f" again, after {row.restarts} restart{'s' if row.restarts > 1 else ''}" if again else ""
        yield f"- `{_code(row.name)}` **{row.state}**{came_back}: {_md(row.why)}{waits}"
        if row.waived:
            yield f"  - waived, the others go on without it: {_md(row.waived)}"
        if row.diagnosis is not None:
            if row.diagnosis.summary != row.why:
                yield f"  - {_md(row.diagnosis.summary)}"
            yield from (f"  - evidence: {_md(each)}" for each in row.diagnosis.evidence)
            if row.diagnosis.advice:
                yield f"  - to do: {_md(row.diagnosis.advice)}"


def _next(jobs: tuple[JobRow, ...]) -> Iterable[str]:
    for row in jobs:
        if row.state in (JobState.WAITING, JobState.QUEUED):
            yield f"- `{_code(row.name)}` {row.state}: {_md(row.why) or 'not started'}"


_MARKED: Final = str.maketrans({each: f"\\{each}" for each in "\\`*_[]<>|#~$!&"})


def _md(text: str) -> str:
    """Outside text that Markdown shows as it is."""
    return clean(text, 600).translate(_MARKED)


def _code(text: str) -> str:
    """Outside text for between backticks."""
    return cut(clean(text, 200).replace("`", "'"), 200)
