"""``python -m pipeline.agent COMMAND --workdir W``: start, run, keeper, bridge, secret, stop."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pipeline.agent import locks, paths


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.agent", description="The supervisor of one work directory."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        "start": "make sure that the agent runs; prints JSON: ok, pid",
        "run": "be the agent",
        "keeper": "be the keeper, which starts the agent again when it dies",
        "bridge": "connect stdin and stdout to the agent's socket",
        "secret": "keep a secret: its value is read from stdin",
        "stop": "end agent and keeper; jobs go on",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--workdir", type=Path, required=True)
        if name == "bridge":
            command.add_argument("--read-only", action="store_true")
        if name == "secret":
            command.add_argument("action", choices=["set"])
            command.add_argument("name", metavar="NAME")
        if name == "stop":
            command.add_argument("--jobs", action="store_true", help="stop the jobs too")
    options = parser.parse_args(argv)
    workdir = options.workdir.resolve()
    if options.command == "bridge":
        from pipeline.agent import bridge

        return bridge.main(str(workdir), read_only=options.read_only)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        runtime = Path(paths.runtime_dir(workdir))
    except (OSError, paths.UnsafeFolderError) as error:
        print(json.dumps({"ok": False, "error": str(error)}))
        return 1
    if options.command == "run":
        return run(workdir, runtime)
    if options.command == "keeper":
        from pipeline.agent import keeper

        return keeper.main(str(workdir))
    if options.command == "secret":
        return set_secret(runtime, options.name)
    from pipeline.agent import service

    if options.command == "start":
        return service.start(workdir, runtime)
    return service.stop(runtime, jobs=options.jobs)


def run(workdir: Path, runtime: Path) -> int:
    """Be the agent; exits 0 at once when there is one."""
    # The lock comes before the heavy imports, so that a second agent costs little and the keeper soon sees this one;
    # a keeper too, so that there is no time in which neither would bring back the other.
    if locks.guard(str(Path(paths.journal_path(workdir)).parent)) is None:
        return 0
    if paths.on_network(str(workdir)) and not locks.share(paths.agent_dir(workdir)):
        print(f"an agent of another machine has {workdir}: one of the two must go", file=sys.stderr)
        return 1
    lock = locks.take(str(runtime / "agent.lock"))
    if lock is None:
        return 0
    if locks.holder(str(runtime / "keeper.lock")) is None:
        from pipeline.agent.launch import spawn_keeper

        spawn_keeper(workdir, runtime)
    from pipeline.agent.daemon import main as serve

    return serve(workdir, runtime, lock)


def set_secret(runtime: Path, name: str) -> int:
    """Keep the value on stdin (one trailing newline is dropped) under ``name``."""
    from pipeline.agent.attempts.secret_files import SecretRefused, write_secret

    value = sys.stdin.read()
    try:
        write_secret(runtime, name, value.removesuffix("\n"))
    except (ValueError, OSError, SecretRefused) as error:
        print(json.dumps({"ok": False, "error": str(error)}))
        return 1
    print(json.dumps({"ok": True}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
