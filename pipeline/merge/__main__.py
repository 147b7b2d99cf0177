"""``python -m pipeline.merge``: samples and answered prompts to one training set."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline import tokens
from pipeline.entry import positive, run_and_exit, share
from pipeline.merge.rules import DROPPED, REASONS


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
    add("--dedup", type=Path, metavar="DIR", help="output of dedup: the rows it dropped are left out")
    add("--target", required=True, metavar="MODEL", help="folder or hub id of the target, for its vocabulary")
    add("--target-revision", metavar="R", help="its commit, tag or branch")
    add("--trust-remote-code", action="store_true", help="allow the target's own tokenizer code")
    add(
        "--drop",
        type=_reasons,
        default=DROPPED,
        metavar="A,B",
        help=f"answers to leave out, of {', '.join(REASONS)} (default: {','.join(DROPPED)})",
    )
    add("--max-lost-share", type=share, default=0.02, metavar="X", help="fail when more of the answer tokens is lost")
    add("--draft-vocab", type=positive, default=32000, metavar="N", help="size of the draft's vocabulary")
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
            dedup=arguments.dedup,
            drop=arguments.drop,
        )
    )


def _reasons(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    for name in names:
        if name not in REASONS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(REASONS)}")
    return names


if __name__ == "__main__":
    tokens.hide_torch()
    run_and_exit(main)
