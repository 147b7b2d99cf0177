"""The command line: arguments in, exit codes out, nothing else."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from console.config import ConfigErrors
from console.demo import DEFAULT_SIZE, DemoError, folders
from console.demo_config import SOURCES
from console.link.errors import LinkError
from console.report import CRASHED, UNREACHABLE
from console.view.text import clean
from console.watching import Host, watch

EXIT_CODES: Final = """exit codes:
  0  all well
  1  a job crashed, came out empty, was lost or gave up
  2  the config or the command line is wrong
  3  the host or its agent cannot be reached, or refused
  4  a job makes no progress
  5  the agent has no plan yet
"""

USAGE: Final = 2
CHANGING: Final = ("apply", "start", "stop", "restart", "kill", "waive", "secret", "notify")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftdeck",
        description="Operator console for training EAGLE-3 draft models. Without a command: open the console.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _common(parser, config=Path("config.toml"), flag=False)
    anywhere = argparse.ArgumentParser(add_help=False)
    _common(anywhere, config=argparse.SUPPRESS, flag=argparse.SUPPRESS)  # absent here: what stood before the command
    verbs = parser.add_subparsers(dest="command", metavar="command")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", parents=[anywhere])

    command("check", "validate the config without a host, and print the run in numbers")
    doctor = command("doctor", "look at the host, and say what is right and wrong there; changes nothing")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    apply = command("apply", "bring the pipeline to the host and make its jobs follow the config")
    apply.add_argument("--dry-run", action="store_true", help="only show what would change, job by job")
    apply.add_argument(
        "--confirm",
        action="append",
        default=[],
        metavar="JOB",
        help="a job whose records may be discarded (repeatable)",
    )
    status = command("status", "the state of the run, without a screen")
    status.add_argument("--json", action="store_true", help="as JSON")
    command("report", "a summary of the run in Markdown")
    for verb, text in (
        ("start", "start jobs"),
        ("stop", "stop jobs: TERM, then their grace time"),
        ("restart", "stop jobs, then start them again"),
        ("kill", "end jobs at once, without their grace time"),
    ):
        action = command(verb, text)
        action.add_argument("jobs", nargs="+", metavar="JOB")
        if verb == "restart":
            action.add_argument(
                "--with-dependents",
                action="store_true",
                help="also every job that waits for their output and has begun",
            )
    waive = command("waive", "let the jobs behind a failed one go on without it")
    waive.add_argument("jobs", nargs=1, metavar="JOB")
    waive.add_argument("--reason", required=True, help="why; it stands in the event log and the report")
    secret = command("secret", "store a secret's value on the host, read from standard input")
    secret.add_argument("verb", choices=["set"])
    secret.add_argument("name", metavar="NAME")
    notify = command("notify", "send a test message to the webhook and a heartbeat, and show the servers' answers")
    notify.add_argument("verb", choices=["test"])
    demo = verbs.add_parser("demo", help="the whole pipeline on a small model, on this machine")
    demo.add_argument(
        "--headless", action="store_true", help="no screen: print events and the report, exit 0 if all is done"
    )
    demo.add_argument("--dir", type=Path, help="the demo's folder (default: in the user's cache folder)")
    demo.add_argument("--size", type=_size, default=DEFAULT_SIZE, help=f"prompts a dataset (default: {DEFAULT_SIZE})")
    demo.add_argument("--fresh", action="store_true", help="end and delete an earlier demo first")
    demo.add_argument("--stop", action="store_true", help="end the demo's jobs, agent and container")
    demo.add_argument("--break", dest="broken", choices=list(SOURCES), help="give this dataset roles nobody knows")
    return parser


def _size(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"given {text}; a whole number of at least 2")
    return int(text)


def _common(parser: argparse.ArgumentParser, *, config: Path | str, flag: bool | str) -> None:
    """The options that stand before the command or after it."""
    parser.add_argument("--config", type=Path, default=config, help="the run's config (default: config.toml)")
    parser.add_argument("--read-only", action="store_true", default=flag, help="watch only: no key changes anything")
    parser.add_argument(
        "--accept-new-host-key",
        action="store_true",
        default=flag,
        help="record the host's key if none is known yet, and show it",
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.read_only and arguments.command in CHANGING:
        parser.error(f"{arguments.command} changes the run; leave --read-only out")
    try:
        code = _run(arguments)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        code = USAGE
    except DemoError as error:
        print(f"draftdeck: {error}", file=sys.stderr)
        code = CRASHED
    except LinkError as error:
        print("draftdeck:", "\n".join(clean(line) for line in str(error).splitlines()), file=sys.stderr)
        code = UNREACHABLE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed has no reader
        code = 141
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "check":
        from console import commands  # with SSH and HTTP, which the first picture does not wait for

        return commands.check(arguments.config)
    return asyncio.run(_remote(arguments))


def _remote(arguments: argparse.Namespace) -> Coroutine[Any, Any, int]:
    host = Host(arguments.config, arguments.accept_new_host_key, arguments.read_only)
    if arguments.command is None:
        return watch(host)
    from console import commands

    match arguments.command:
        case "apply":
            return commands.apply(host, dry_run=arguments.dry_run, confirm=tuple(arguments.confirm))
        case "status":
            return commands.status(host, as_json=arguments.json)
        case "report":
            return commands.report(host)
        case "restart" if arguments.with_dependents:
            return commands.act(host, "restart-with-dependents", arguments.jobs)
        case "start" | "stop" | "restart" | "kill":
            return commands.act(host, arguments.command, arguments.jobs)
        case "waive":
            return commands.act(host, "waive", arguments.jobs, arguments.reason)
        case "secret":
            return commands.secret(host, arguments.name)
        case "doctor":
            return commands.doctor(host, as_json=arguments.json)
        case "notify":
            return commands.notify_test(host)
        case "demo":
            places = folders(arguments.dir)
            if arguments.stop:
                return commands.demo_stop(places)
            return commands.demo(
                places,
                size=arguments.size,
                headless_run=arguments.headless,
                fresh=arguments.fresh,
                broken=arguments.broken or "",
            )
        case other:
            raise AssertionError(other)


if __name__ == "__main__":
    main()
