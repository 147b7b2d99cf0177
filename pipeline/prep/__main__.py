"""``python -m pipeline.prep``: one dataset to records the target's tokens are in."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pipeline import tokens
from pipeline.entry import part, positive, run_and_exit, share
from pipeline.prep.settings import SHAPES, Settings

UNBOUNDED: Final = 1 << 40  # tokens


def build_parser(*, inspecting: bool = False) -> argparse.ArgumentParser:
    """The command line; to inspect a dataset, nothing else has to be given."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.prep",
        description="Turn one dataset into tokenized records: prompts to be answered by the target, or samples that "
        "already hold its answers. Every row that is read is kept or dropped for a reason that is counted.",
    )
    add = parser.add_argument
    add(
        "--dataset",
        required=not inspecting,
        default="inspected",
        type=_name,
        metavar="NAME",
        help="the dataset's name in the run, e.g. B5",
    )
    add(
        "--kind",
        required=not inspecting,
        default="",
        choices=("answers", "prompts"),
        help="holds the target's own answers, or prompts only",
    )
    add(
        "--source",
        required=not inspecting,
        metavar="ID_OR_PATH",
        help="a file or folder, or a hub id",
    )
    add(
        "--inspect",
        metavar="ID_OR_PATH",
        help="show what would become of the first rows of this source and write nothing; needs no other option",
    )
    add("--config", metavar="C", help="the hub dataset's configuration")
    add("--split", metavar="S", help="its split; of a local folder: the files that have it in their names")
    add("--revision", metavar="R", help="its commit, tag or branch")
    add(
        "--file",
        dest="files",
        action="append",
        default=[],
        metavar="GLOB",
        help="read only files like this one, in which * also stands for /; may be repeated",
    )
    add(
        "--shape",
        default="auto",
        choices=("auto", *SHAPES),
        help="how a row holds its conversation (default: %(default)s)",
    )
    add("--take", type=positive, metavar="N", help="keep N rows, drawn at random; default: all")
    add("--seed", type=int, default=0, metavar="N", help="of the draw (default: %(default)s)")
    add(
        "--train-turns",
        default="assistant",
        choices=("assistant", "all-but-system"),
        help="which turns of an answers set the loss covers (default: %(default)s)",
    )
    add(
        "--over-context",
        default="drop",
        choices=("drop", "cut"),
        help="what becomes of a sample longer than the context: dropped, or cut after a turn (default: %(default)s)",
    )
    add("--group", metavar="FIELD", help="rows with the same value of FIELD are held out together")
    add("--heldout-share", type=part, default=0.02, metavar="X", help="share set aside (default: %(default)s)")
    add(
        "--min-kept-share",
        type=share,
        default=0.0,
        metavar="X",
        help="fail when a smaller share of the rows is usable",
    )
    add(
        "--damaged",
        default="fail",
        choices=("fail", "keep"),
        help="what a file that cannot be read to its end does: fails the set, or leaves the rows before the damage "
        "(default: %(default)s)",
    )
    add(
        "--target",
        required=not inspecting,
        default="",
        metavar="MODEL",
        help="folder or hub id of the target, for its tokenizer",
    )
    add("--target-revision", metavar="R", help="its commit, tag or branch")
    add(
        "--target-family", default="", metavar="F", help="of which more is known, such as kimi_k25; default: as it says"
    )
    add("--trust-remote-code", action="store_true", help="allow the target's own tokenizer code")
    add("--template-json", type=_variables, default={}, metavar="JSON", help="variables of the chat template")
    add(
        "--context-length",
        type=positive,
        required=not inspecting,
        default=UNBOUNDED,
        metavar="N",
        help="the target's context, in tokens",
    )
    add("--max-new-tokens", type=positive, default=None, metavar="N", help="an answer's budget; needed for prompts")
    add(
        "--partition",
        default="short",
        metavar="NAME",
        help="which partition answers the prompts (default: %(default)s)",
    )
    add(
        "--out",
        required=not inspecting,
        default=Path(),
        type=Path,
        metavar="DIR",
        help="gets records.jsonl and manifest.json",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage. 0: records are there; 1: it could not run; 2: wrong arguments; 3: it never will."""
    given = sys.argv[1:] if argv is None else argv
    parser = build_parser(inspecting=any(each.partition("=")[0] == "--inspect" for each in given))
    arguments = vars(parser.parse_args(given))
    arguments["files"] = tuple(arguments["files"])
    if arguments["trust_remote_code"] and not _pinned(arguments["target"], arguments["target_revision"]):
        parser.error("--trust-remote-code runs code of the target: give a folder, or a commit as --target-revision")
    inspected = arguments.pop("inspect")
    if inspected is not None:
        from pipeline.prep.inspect import inspect

        return inspect(Settings(**{**arguments, "source": inspected}))
    if arguments["kind"] == "prompts":
        if arguments["max_new_tokens"] is None:
            parser.error("--kind prompts needs --max-new-tokens: the answer's share of the context")
        if arguments["max_new_tokens"] >= arguments["context_length"]:
            parser.error(
                f"--max-new-tokens {arguments['max_new_tokens']} leaves no room for a prompt in "
                f"--context-length {arguments['context_length']}"
            )
    from pipeline.prep.stage import run

    return run(Settings(**arguments))


def _pinned(target: str, revision: str | None) -> bool:
    """Whether the target's code cannot change under the run."""
    return (
        Path(target).is_absolute() or Path(target).is_dir() or re.fullmatch(r"[0-9a-f]{40}", revision or "") is not None
    )


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot name a file; use letters, digits, '.', '_', '-'")
    return text


def _variables(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('not a JSON object; write e.g. {"thinking": true}')
    return value


if __name__ == "__main__":
    tokens.hide_torch()
    run_and_exit(main)
