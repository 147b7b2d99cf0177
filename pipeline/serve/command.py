"""The command line of a model server, built from what the plan says of it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Engine = Literal["sglang", "reference"]

MODULES: dict[Engine, str] = {"sglang": "sglang.launch_server", "reference": "pipeline.demo.server"}

OWN_FLAGS = frozenset(
    {
        "model-path",
        "host",
        "port",
        "speculative-algorithm",
        "speculative-draft-model-path",
        "speculative-num-steps",
        "speculative-eagle-topk",
        "speculative-num-draft-tokens",
    }
)
"""Flags that have an option of their own; given again as a plain flag they could contradict it."""


@dataclass(frozen=True)
class Speculation:
    """A draft and how it is used."""

    draft: str  # folder or hub id
    algorithm: str = "EAGLE3"
    steps: int = 3
    topk: int = 1
    draft_tokens: int = 4


@dataclass(frozen=True)
class ServeOptions:
    """One server of the plan. ``flags`` are the engine's own, names without dashes; value None: a bare flag."""

    engine: Engine
    model: str
    name: str = "baseline"
    host: str = "127.0.0.1"
    port: int = 30000
    python: str = sys.executable
    flags: tuple[tuple[str, str | None], ...] = ()
    algorithm: str | None = None  # as given, also without a draft
    speculation: Speculation | None = None
    check_draft: bool = True


def parse_flag(text: str) -> tuple[str, str | None]:
    """Read ``NAME=VALUE`` or ``NAME``. Raises ValueError for a name with dashes in front, blanks or nothing in it."""
    name, equals, value = text.partition("=")
    name = name.replace("_", "-")
    if not name or name.startswith("-") or any(letter.isspace() for letter in name):
        raise ValueError(f"flag {text!r}: expected NAME=VALUE or NAME without dashes in front, like tp-size=8")
    return name, value if equals else None


def server_argv(options: ServeOptions) -> list[str]:
    """The argv that starts the server: the same flags for either engine."""
    argv = [options.python, "-m", MODULES[options.engine], "--model-path", options.model]
    argv += ["--host", options.host, "--port", str(options.port)]
    for name, value in options.flags:
        argv.append(f"--{name}")
        if value is not None:
            argv.append(value)
    if options.speculation is not None:
        argv += speculation_flags(options.speculation)
    return argv


def speculation_flags(speculation: Speculation) -> Sequence[str]:
    """SGLang's flags for a draft."""
    return [
        *("--speculative-algorithm", speculation.algorithm),
        *("--speculative-draft-model-path", speculation.draft),
        *("--speculative-num-steps", str(speculation.steps)),
        *("--speculative-eagle-topk", str(speculation.topk)),
        *("--speculative-num-draft-tokens", str(speculation.draft_tokens)),
    ]


def become(who: str, command: list[str], *, title: str = "", print_only: bool = False) -> int:
    """Turn this process into the command, or only print it; an exit code where it comes back."""
    if print_only:
        print(shlex.join(command))
        return 0
    print(f"{who}: {title}{shlex.join(command)}", file=sys.stderr, flush=True)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming it is the point
    except OSError as error:
        print(f"{who}: --python {command[0]} cannot be started: {error}", file=sys.stderr)
        return 127
