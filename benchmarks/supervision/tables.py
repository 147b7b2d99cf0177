"""The figures as tables in Markdown: what the README quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.supervision.churn import CHURNING, STEADY, Tally
from benchmarks.supervision.measure import Use

OURS = "draftdeck"


def supervisors(found: Mapping[str, Mapping[str, Any]]) -> None:
    """What a kill costs under each supervisor, and what each uses."""
    print(
        "\n| | job SIGKILLed → runs again, p50 / p95 / max | its end on disk before | supervisor SIGKILLed: jobs alive "
        "| known again | started twice | exit codes known | comes back |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for title, one in found.items():
        took, recorded = one["job_killed_to_running"], one["ends_recorded_first"]
        print(
            f"| {title} | {took['p50']:.0f} / {took['p95']:.0f} / {took['max']:.0f} ms "
            f"| {'no' if recorded is None else f'{recorded} of {count(took)}'} "
            f"| {one['alive']} of {one['staying']} | {one['adopted']} of {one['staying']} | {one['doubled']} "
            f"| {one['codes_kept']} of {one['ended']} | {'by itself' if one['comes_back_by_itself'] else 'no'} |"
        )
    print(f"\n| | jobs killed | p50, × {OURS} | all jobs killed at once → all run again | supervisor killed |")
    print("| --- | --- | --- | --- | --- |")
    ours = found[OURS]["job_killed_to_running"]["p50"]
    for title, one in found.items():
        took, together = one["job_killed_to_running"], one["all_jobs_killed_to_last_running_ms"]
        ratio = took["p50"] / ours
        print(f"| {title} | {count(took)} | {ratio:.2g} | {together:.0f} ms | {one['supervisor_kills']} × |")
    _use_head("at rest")
    for title, one in found.items():
        for part, use in one["idle"].items():
            print(_use_row(f"{title}: {part}", Use(**use)))


def count(took: Mapping[str, float]) -> int:
    return int(took["n"])


def churned(tally: Tally) -> None:
    """What became of jobs that started and ended while the agent was killed again and again."""
    again = tally.figures()["served_again"]
    assert isinstance(again, dict)
    print(f"\nAgent SIGKILLed {tally.kills} times at random moments; {STEADY} jobs run, {CHURNING} start and end:")
    print("\n| alive | adopted | starts | started twice | exit codes kept | SIGKILL → serves again, p50 / p95 / max |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(
        f"| {tally.alive} of {tally.steady} | {tally.adopted} of {tally.steady} | {tally.starts} | {tally.doubled} "
        f"| {tally.codes_kept} of {tally.ends} | {again['p50']:.0f} / {again['p95']:.0f} / {again['max']:.0f} ms |"
    )


def crowd(count: int, found: Mapping[str, Use]) -> None:
    """What the agent and its shims use with many jobs."""
    _use_head(f"{count} jobs, sampled every 2 s")
    for part, use in found.items():
        print(_use_row(part, use))


def _use_head(title: str) -> None:
    print(f"\n| {title} | processes | CPU, % of a core | RSS, MiB | private, MiB | largest private, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")


def _use_row(name: str, use: Use) -> str:
    figures = f"{use.cpu_percent:.2f} | {use.rss:.1f} | {use.private:.1f} | {use.private_max:.1f}"
    return f"| {name} | {use.processes} | {figures} |"
