"""The figures as tables in Markdown: what the README quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.supervision.churn import CHURNING, STEADY, Tally
from benchmarks.supervision.measure import Use

OURS = "draftdeck"


def supervisors(found: Mapping[str, Mapping[str, Any]]) -> None:
    """What a kill costs under each supervisor, and how much faster or slower ours is."""
    print("\n| | job SIGKILLed → runs again, p50 / p95 / max | × ours | its end on disk before | all jobs at once |")
    print("| --- | --- | --- | --- | --- |")
    ours = found[OURS]["job_killed_to_running"]
    for title, one in found.items():
        took = one["job_killed_to_running"]
        recorded = one["ends_recorded_first"]
        before = "none kept" if recorded is None else f"{recorded} of {took['n']}"
        print(
            f"| {title} | {took['p50']:.0f} / {took['p95']:.0f} / {took['max']:.0f} ms "
            f"| {took['p50'] / ours['p50']:.1f} | {before} | {one['all_jobs_killed_to_last_running_ms']:.0f} ms |"
        )
    print("\n| | supervisor SIGKILLed | jobs alive | known again | started twice | exit codes known | comes back |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for title, one in found.items():
        print(
            f"| {title} | {one['supervisor_kills']} × | {one['alive']} of {one['staying']} "
            f"| {one['adopted']} of {one['staying']} | {one['doubled']} | {one['codes_kept']} of {one['ended']} "
            f"| {'by itself' if one['comes_back_by_itself'] else 'no'} |"
        )
    _use_head("at rest")
    for title, one in found.items():
        for part, use in one["idle"].items():
            print(_use_row(f"{title}: {part}", Use(**use)))


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
