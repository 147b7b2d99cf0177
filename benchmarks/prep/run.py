"""Prep's speed and memory on a large file, against ``datasets.map`` doing the same work in the same run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console.demo import cache

ROWS: Final = (100_000, 1_000_000)
QUICK_ROWS: Final = (5_000, 50_000)
AT_ONCE: Final = 10
CONTEXT: Final = 2048
BUDGET: Final = 512
TEXT: Final = (
    "write a function that returns the number of words in each line of the given text and sorts them by their length "
    "then explain what happens when the input is empty or holds only spaces and punctuation such as commas"
)


@dataclass(frozen=True)
class Run:
    """One process: seconds, and its peak resident memory in MiB."""

    seconds: float
    peak_mib: float

    def figures(self, rows: int) -> dict[str, float]:
        return {
            "seconds": round(self.seconds, 1),
            "rows_s": round(rows / self.seconds),
            "peak_mib": round(self.peak_mib, 1),
        }


def measure(quick: bool) -> dict[str, Any]:
    """Run everything once; print the table."""
    few, many = QUICK_ROWS if quick else ROWS
    target = cache() / "models" / "smollm2-135m-instruct"
    subprocess.run([sys.executable, "-m", "pipeline.demo.target", "--out", str(target)], check=True)
    figures: dict[str, Any] = {"rows": [few, many], "target": target.name}
    with tempfile.TemporaryDirectory(prefix="draftdeck-prep-") as name:
        folder = Path(name)
        for rows in (few, many):
            source = make(folder / f"{rows}.jsonl", rows)
            ours = run(prep(target, source, folder / f"ours-{rows}"), folder)
            peer = run(
                _python("benchmarks.prep.peer", str(target), str(CONTEXT), str(BUDGET), str(source),
                        str(folder / f"peer-{rows}" / "out.jsonl")),
                folder,
            )  # fmt: skip
            kept = (_lines(folder / f"ours-{rows}" / "records.jsonl"), _lines(folder / f"peer-{rows}" / "out.jsonl"))
            if kept[0] != kept[1]:
                raise RuntimeError(f"not the same work: {kept[0]:,} records and {kept[1]:,}")
            figures[f"draftdeck_{rows}"] = ours.figures(rows)
            figures[f"datasets_map_{rows}"] = peer.figures(rows)
            if rows == few:
                figures["at_once"] = at_once(target, source, folder, rows)
    _table(figures, few, many)
    return figures


def make(path: Path, rows: int) -> Path:
    """A file with the columns of a public code set, no two prompts the same, of 5 to 40 words."""
    draw, words = random.Random(0), TEXT.split()
    with path.open("w") as file:
        for number in range(rows):
            text = " ".join(draw.choice(words) for _ in range(draw.randint(5, 40)))
            row = {
                "id": f"{number:08x}",
                "input": f"{number}: {text}",
                "output": "pass",
                "domain": "generic",
            }
            file.write(json.dumps(row) + "\n")
    return path


def prep(target: Path, source: Path, out: Path) -> list[str]:
    """The command line of the stage."""
    return _python(
        "pipeline.prep", "--dataset", "B2", "--kind", "prompts", "--source", str(source), "--shape", "pair",
        "--target", str(target), "--context-length", str(CONTEXT), "--max-new-tokens", str(BUDGET), "--out", str(out),
    )  # fmt: skip


def run(command: Sequence[str], folder: Path) -> Run:
    """Run a command to its end."""
    began = time.monotonic()
    process = _start(command, folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[2]} ended with {process.returncode}: {(folder / 'log').read_text()[-2000:]}")
    return Run(time.monotonic() - began, usage.ru_maxrss / 1024)


def at_once(target: Path, source: Path, folder: Path, rows: int) -> dict[str, float]:
    """Ten preps of a tenth of the rows each, one after the other and all at once, in seconds."""
    parts = []
    with source.open() as lines:
        for number in range(AT_ONCE):
            part = folder / f"part-{number}.jsonl"
            with part.open("w") as file:
                file.writelines(line for _, line in zip(range(rows // AT_ONCE), lines, strict=False))
            parts.append(part)
    serial = sum(run(prep(target, part, folder / f"serial-{part.stem}"), folder).seconds for part in parts)
    began = time.monotonic()
    processes = [_start(prep(target, part, folder / f"at-once-{part.stem}"), folder) for part in parts]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError("one of ten preps at once failed")
    return {"one_after_the_other_s": round(serial, 1), "at_once_s": round(time.monotonic() - began, 1)}


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _table(figures: dict[str, Any], few: int, many: int) -> None:
    print(f"\n| one JSONL file to token ids | rows/s, {few:,} | rows/s, {many:,} | peak, {few:,} | peak, {many:,} |")
    print("| --- | --- | --- | --- | --- |")
    for who, name in (("draftdeck", "Draftdeck"), ("datasets_map", "datasets.map")):
        first, last = figures[f"{who}_{few}"], figures[f"{who}_{many}"]
        print(
            f"| {name} | {first['rows_s']:,} | {last['rows_s']:,} | {first['peak_mib']:.0f} MiB |"
            f" {last['peak_mib']:.0f} MiB |"
        )
    times = figures["at_once"]
    print(
        f"\nTen preps of {few // AT_ONCE:,} rows: {times['one_after_the_other_s']} s one after the other, "
        f"{times['at_once_s']} s at once."
    )
