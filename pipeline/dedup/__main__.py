"""``python -m pipeline.dedup``: which rows of all prepared datasets say what another one says already."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.entry import positive, run_and_exit, share


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.dedup",
        description="Find the rows that generate and merge are to leave out: exact and near duplicates over all "
        "datasets. The first stays, answers before prompts; of two on both sides of the held-out split the training "
        "side goes. A prep that has no output is left out.",
    )
    add = parser.add_argument
    add("--samples", action="append", default=[], type=Path, metavar="DIR", help="output of a prep of kind answers")
    add("--prompts", action="append", default=[], type=Path, metavar="DIR", help="output of a prep of kind prompts")
    add("--threshold", type=share, default=0.8, metavar="X", help="Jaccard similarity from which rows are alike")
    add("--shingle", type=positive, default=5, metavar="N", help="words a shingle (default: %(default)s)")
    add("--out", required=True, type=Path, metavar="DIR", help="gets dropped.jsonl and manifest.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage. 0: it is decided; 1: it could not run; 2: wrong arguments; 3: the sets cannot be used so."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not arguments.samples and not arguments.prompts:
        parser.error("nothing to compare: give --samples or --prompts")
    if not arguments.threshold:
        parser.error("--threshold 0 would make all rows alike; more than 0")
    from pipeline.dedup.stage import Settings, run

    return run(
        Settings(
            samples=tuple(arguments.samples),
            prompts=tuple(arguments.prompts),
            threshold=arguments.threshold,
            shingle=arguments.shingle,
            out=arguments.out,
        )
    )


if __name__ == "__main__":
    run_and_exit(main)
