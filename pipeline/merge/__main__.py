"""``python -m pipeline.merge``: samples and answered prompts to one training set."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pipeline import tokens


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.merge",
        description="Join the samples of the answers sets and the target's answers to the prompts sets to one training "
        "set, held-out rows set aside, and count the draft's vocabulary.",
    )
    add = parser.add_argument
    add("--samples", action="append", default=[], type=Path, metavar="DIR", help="output of a prep of kind answers")
    add("--prompts", action="append", default=[], type=Path, metavar="DIR", help="output of a prep of kind prompts")
    add("--responses", type=Path, metavar="DIR", help="output of generate; needed with --prompts")
    add("--target", required=True, metavar="MODEL", help="folder or hub id of the target, for its vocabulary")
    add("--target-revision", metavar="R", help="its commit, tag or branch")
    add("--trust-remote-code", action="store_true", help="allow the target's own tokenizer code")
    add("--max-lost-share", type=_share, default=0.02, metavar="X", help="fail when more of the answer tokens is lost")
    add("--draft-vocab", type=_positive, default=32000, metavar="N", help="size of the draft's vocabulary")
    add("--out", required=True, type=Path, metavar="DIR", help="gets train.jsonl, heldout.jsonl, draft_vocab.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage. 0: the set is there; 1: it could not run; 2: wrong arguments; 3: it ran and refuses the set."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not arguments.samples and not arguments.prompts:
        parser.error("nothing to merge: give --samples or --prompts")
    if arguments.prompts and arguments.responses is None:
        parser.error("--prompts needs --responses, where their answers are")
    from pipeline.merge.stage import Settings, run

    return run(
        Settings(
            samples=tuple(arguments.samples),
            prompts=tuple(arguments.prompts),
            responses=arguments.responses,
            target=arguments.target,
            target_revision=arguments.target_revision,
            trust_remote_code=arguments.trust_remote_code,
            max_lost_share=arguments.max_lost_share,
            draft_vocab=arguments.draft_vocab,
            out=arguments.out,
        )
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a share between 0 and 1")
    return value


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    tokens.hide_torch()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
