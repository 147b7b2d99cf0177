"""Reading alone: a draw of 15,000 rows from a large file, against ``datasets`` streaming the same file.

``python -m benchmarks.prep.reading draftdeck|datasets FILE`` does one of the two.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.prep.run import QUICK_ROWS, ROWS, make, run

TAKE: Final = 15_000
READERS: Final = {"draftdeck": "Draftdeck", "datasets": "datasets, streaming"}


def measure(quick: bool = False) -> dict[str, Any]:
    """Both readers over few and many rows, as JSON lines and as Parquet; start-up is part of the time."""
    few, many = QUICK_ROWS if quick else ROWS
    figures: dict[str, Any] = {"rows": [few, many], "take": TAKE}
    with tempfile.TemporaryDirectory(prefix="draftdeck-reading-") as name:
        folder = Path(name)
        for rows in (few, many):
            source = make(folder / f"{rows}.jsonl", rows)
            for file in (source, _parquet(source)):
                for who in READERS:
                    command = [sys.executable, "-m", "benchmarks.prep.reading", who, str(file)]
                    figures[f"{who}_{file.suffix[1:]}_{rows}"] = run(command, folder).figures(rows)
                file.unlink()
    print(f"\n| a draw of {TAKE:,} rows |" + "".join(f" rows/s of {rows:,} | peak |" for rows in (few, many)))
    print("| --- | --- | --- | --- | --- |")
    for kind in ("jsonl", "parquet"):
        for who, title in READERS.items():
            found = [figures[f"{who}_{kind}_{rows}"] for rows in (few, many)]
            cells = "".join(f" {each['rows_s']:,} | {each['peak_mib']:.0f} MiB |" for each in found)
            print(f"| {title}, {kind} |{cells}")
    return figures


def draw(file: str) -> int:
    """Our readers, as the stage uses them: what the draw does not want is not decoded."""
    from pipeline.prep.sample import Draw
    from pipeline.prep.sources import open_source

    kept: Draw[Any] = Draw(TAKE, 0)
    count = 0
    for row in open_source(file).rows():
        count += 1
        if kept.wants(row.position):
            kept.offer(row.position, str(row.position), row.load())
    return count


def stream(file: str) -> int:
    """The library's readers; it decodes every row, so drawing would cost nothing more."""
    import datasets

    kind = "parquet" if file.endswith("parquet") else "json"
    return sum(1 for _ in datasets.load_dataset(kind, data_files=file, split="train", streaming=True))


def _parquet(source: Path) -> Path:
    """The same rows as Parquet, in row groups of 10,000; written by a process of its own, for its memory."""
    code = (
        "import sys, pyarrow.json as j, pyarrow.parquet as p\n"
        "p.write_table(j.read_json(sys.argv[1]), sys.argv[2], row_group_size=10_000)\n"
    )
    target = source.with_suffix(".parquet")
    subprocess.run([sys.executable, "-c", code, str(source), str(target)], check=True)
    return target


if __name__ == "__main__":
    reader, path = sys.argv[1:]
    print({"draftdeck": draw, "datasets": stream}[reader](path))
