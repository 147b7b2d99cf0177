"""Check what is about to be served, then become the server: ``python -m pipeline.serve --help``."""

from __future__ import annotations

import argparse
import sys

from pipeline.serve.command import ServeOptions, Speculation, become, parse_flag, server_argv
from pipeline.serve.guard import refusals, remarks

REFUSED = 4
"""Exit code when the guard refuses; the reasons are on stderr."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.serve",
        description="Start a model server. The process becomes the server: its exit code and signals are the server's.",
    )
    parser.add_argument("--engine", required=True, choices=("sglang", "reference"), help="which server speaks")
    parser.add_argument("--model", required=True, help="folder or hub id of the target")
    parser.add_argument("--name", default="baseline", help="the plan's name for this server, for the log")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the engine installed")
    parser.add_argument(
        "--flag", action="append", default=[], metavar="NAME[=VALUE]", help="engine flag without dashes: tp-size=8"
    )
    parser.add_argument("--draft", help="folder or hub id of the draft")
    parser.add_argument("--algorithm", help="speculative algorithm; EAGLE3 with a draft if left out")
    parser.add_argument("--steps", type=int, default=3, help="draft steps")
    parser.add_argument("--topk", type=int, default=1, help="draft branches a step")
    parser.add_argument("--draft-tokens", type=int, default=4, help="tokens verified at once; steps + 1 with topk 1")
    parser.add_argument("--served-draft-check", choices=("on", "off"), default="on", help="off: do not read the draft")
    parser.add_argument("--print", action="store_true", dest="print_only", help="print the server's command and end")
    return parser


def options_of(arguments: argparse.Namespace) -> ServeOptions:
    """Raises ValueError for a flag that cannot be read."""
    speculation = None
    if arguments.draft:
        speculation = Speculation(
            draft=arguments.draft,
            algorithm=arguments.algorithm or "EAGLE3",
            steps=arguments.steps,
            topk=arguments.topk,
            draft_tokens=arguments.draft_tokens,
        )
    return ServeOptions(
        engine=arguments.engine,
        model=arguments.model,
        name=arguments.name,
        host=arguments.host,
        port=arguments.port,
        python=arguments.python,
        flags=tuple(parse_flag(text) for text in arguments.flag),
        algorithm=arguments.algorithm,
        speculation=speculation,
        check_draft=arguments.served_draft_check == "on",
    )


def main(argv: list[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        options = options_of(arguments)
    except ValueError as error:
        parser.error(str(error))
    reasons = refusals(options)
    if reasons:
        for reason in reasons:
            print(f"serve: refused: {reason}", file=sys.stderr)
        return REFUSED
    if not arguments.print_only:
        for remark in remarks(options):
            print(f"serve: {remark}", file=sys.stderr)
    return become("serve", server_argv(options), title=f"{options.name}: ", print_only=arguments.print_only)


if __name__ == "__main__":
    sys.exit(main())
