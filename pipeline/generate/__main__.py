"""Answer every prompt with the target, each exactly once: ``python -m pipeline.generate --help``."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from pipeline import outputs
from pipeline.answers import TRUNCATED
from pipeline.duplicates import DuplicatesError
from pipeline.files import content_hash, file_hash, write_atomically
from pipeline.generate.board import Board
from pipeline.generate.fleet import Fleet
from pipeline.generate.judge import REASONS
from pipeline.generate.outcome import RunError
from pipeline.generate.prompts import Prompts, index_prompts
from pipeline.generate.runner import Runner, plan_legs
from pipeline.generate.settings import Settings, SettingsError, check_names, parse_partition, parse_policy
from pipeline.generate.store import FORMAT, MANIFEST, Loaded, Store
from pipeline.generate.writer import Writer
from pipeline.progress import Reporter

OK, UNANSWERED, USAGE, EMPTY, REFUSED, STOPPED = 0, 1, 2, 3, 4, 143


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.generate",
        description="Answer every prompt with the target. Started again, it goes on with what is missing.",
        epilog="Exit codes: 0 all answered or refused for good, 1 some without an answer (start again), 2 usage, "
        "3 no prompts, no answers, or a dedup of other prompts, 4 cannot go on, 143 stopped.",
    )
    parser.add_argument(
        "--server",
        required=True,
        action="append",
        help="http://HOST:PORT of a model server; may be given several times",
    )
    parser.add_argument("--prompts", required=True, action="append", type=Path, help="folder that prep wrote")
    parser.add_argument(
        "--partition",
        required=True,
        action="append",
        help='JSON: {"name": "short", "concurrency": 150, "max_new_tokens": 10240, "temperature": 1.0, "top_p": 0.95, '
        '"top_k": -1}',
    )
    parser.add_argument(
        "--dedup", type=Path, metavar="DIR", help="folder that dedup wrote; what it dropped is not asked"
    )
    parser.add_argument("--side-by-side", action="store_true", help="run the partitions at once instead of in turn")
    parser.add_argument(
        "--overlap", action="store_true", help="start the next partition while the last answers of one are awaited"
    )
    parser.add_argument(
        "--adaptive",
        type=int,
        default=0,
        metavar="LEAST",
        help="slots of a server follow its load, between so many and the partitions' concurrency; 0: they do not",
    )
    parser.add_argument("--pilot", type=int, default=100, help="prompts of every dataset sent first, for the estimate")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which prompts are sent")
    parser.add_argument("--retries", type=int, default=8, help="attempts after the first, for one prompt")
    parser.add_argument("--stop-id", type=int, action="append", default=[], help="token id that ends an answer")
    parser.add_argument("--timeout-floor", type=float, default=120.0, help="seconds any answer is waited for at least")
    parser.add_argument(
        "--faulty",
        default="{}",
        help='JSON: {"retry": ["aborted", "empty"], "set_aside": [], "retries": 2, "thinking_end": 163607}: what is '
        f"done with answers that are {', '.join(REASONS)}; what is in no list is kept",
    )
    parser.add_argument(
        "--suspect-after", type=int, default=3, help="crashes of the server after which a prompt is asked alone"
    )
    parser.add_argument(
        "--max-set-aside-share", type=float, default=0.5, help="of the latest prompts; more end the run early"
    )
    parser.add_argument("--model-path", help="what the server must say it serves")
    parser.add_argument("--out", required=True, type=Path, help="folder for the answers, one file a dataset")
    return parser


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Raises SettingsError."""
    servers = [server.rstrip("/") for server in arguments.server]
    for server in servers:
        if not server.startswith(("http://", "https://")):
            raise SettingsError(f"--server {server}: expected http://HOST:PORT")
        if servers.count(server) > 1:
            raise SettingsError(f"--server {server} is given twice")
    if arguments.adaptive < 0:
        raise SettingsError(f"--adaptive {arguments.adaptive}: expected 1 or more, or 0 for off")
    for name, value in (("--pilot", arguments.pilot), ("--retries", arguments.retries)):
        if value < 0:
            raise SettingsError(f"{name} {value}: expected 0 or more")
    if arguments.suspect_after < 1:
        raise SettingsError(f"--suspect-after {arguments.suspect_after}: expected 1 or more")
    if not 0 <= arguments.max_set_aside_share <= 1:
        raise SettingsError(f"--max-set-aside-share {arguments.max_set_aside_share}: expected 0 to 1")
    partitions = tuple(parse_partition(text) for text in arguments.partition)
    check_names(partitions)
    return Settings(
        servers=tuple(servers),
        prompts=tuple(arguments.prompts),
        partitions=partitions,
        dedup=arguments.dedup,
        out=arguments.out,
        pilot=arguments.pilot,
        seed=arguments.seed,
        retries=arguments.retries,
        stop_ids=tuple(arguments.stop_id),
        model_path=arguments.model_path,
        side_by_side=arguments.side_by_side,
        overlap=arguments.overlap,
        adaptive=arguments.adaptive,
        timeout_floor_s=arguments.timeout_floor,
        policy=parse_policy(arguments.faulty),
        suspect_after=arguments.suspect_after,
        max_set_aside_share=arguments.max_set_aside_share,
    )


def main(argv: list[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        settings = settings_of(arguments)
    except SettingsError as error:
        parser.error(str(error))
    reporter = Reporter()
    reporter.update("reading prompts", unit="answers", force=True)
    try:
        with outputs.exclusive(settings.out):
            return asyncio.run(run(settings, reporter))
    except DuplicatesError as error:
        reporter.finish(0, str(error))  # the same next time
        return EMPTY
    except (SettingsError, RunError, outputs.HeldError) as error:
        print(f"generate: error: {error}", file=sys.stderr, flush=True)
        return REFUSED


async def run(settings: Settings, reporter: Reporter) -> int:
    """Index, resume, answer, write the manifest. Raises SettingsError, RunError, DuplicatesError."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    prompts = await asyncio.to_thread(index_prompts, settings)
    if not prompts.by_key:
        reporter.finish(0, f"no prompts in {', '.join(str(path) for path in settings.prompts)}: has prep run?")
        return EMPTY
    store = Store(settings.out, model=settings.model_path)
    loaded = await asyncio.to_thread(store.load, prompts.by_key)
    board = Board(settings, prompts.by_key)
    answered: Counter[str] = Counter()
    for key, stored in loaded.answers.items():
        prompt = prompts.by_key[key]
        board.answered_before(prompt, stored.finish, stored.completion_tokens, stored.latency_s, stored.faults)
        answered[stored.dataset] += 1
    for key, aside in loaded.refused.items():
        board.set_aside(prompts.by_key[key], aside.kind or aside.reason)
    done, total = float(board.answered + board.errors), float(board.total)
    reporter.update("resuming", done=done, total=total, unit="answers", datasets=board.counts(), force=True)
    missing = [one for key, one in prompts.by_key.items() if key not in loaded.answers and key not in loaded.refused]
    if missing:
        (settings.out / MANIFEST).unlink(missing_ok=True)  # it speaks of files that are about to grow
    from pipeline.generate.engine import SGLang  # a second of imports, after the first lines of progress

    connections = sum(one.concurrency for one in settings.partitions)
    fleet = Fleet(settings, {url: SGLang(url, connections=connections) for url in settings.servers})
    runner = Runner(settings, fleet, Writer(store), board, reporter)
    try:
        stopped = False
        if missing:
            stopped = await _until(
                stopping, runner.run(plan_legs(settings, missing, answered), remarks(prompts, loaded))
            )
    finally:
        await fleet.close()
    if stopped:
        print(
            f"generate: stopped with {board.answered:,} of {board.total:,} answered; start again to go on", flush=True
        )
        return STOPPED
    return _finish(settings, reporter, board, runner.unanswered, prompts.missing)


async def _until(stopping: asyncio.Event, work: Any) -> bool:
    """Run ``work`` to its end, or until asked to stop: True. Its errors pass."""
    task = asyncio.ensure_future(work)
    signal_seen = asyncio.create_task(stopping.wait())
    await asyncio.wait({task, signal_seen}, return_when=asyncio.FIRST_COMPLETED)
    signal_seen.cancel()
    if task.done():
        await task
        return False
    task.cancel()
    await asyncio.wait({task})
    return True


def _finish(
    settings: Settings, reporter: Reporter, board: Board, unanswered: list[str], left_out: tuple[Path, ...]
) -> int:
    """Report what came of it. The manifest is for an output with nothing missing."""
    manifest = settings.out / MANIFEST
    if not unanswered:
        write_atomically(manifest, msgspec.json.format(msgspec.json.encode(manifest_of(settings, board))))
    reasons = Counter[str]()
    for one in board.datasets.values():
        reasons.update(one.dropped)
    top = f"; most often: {reasons.most_common(1)[0][0]}" if reasons else ""
    faulty = Counter[str]()
    for one in board.datasets.values():
        faulty.update(one.faults)
    message = f"{board.answered:,} of {board.total:,} prompts answered, {faulty[TRUNCATED]:,} cut at their budget"
    message += "".join(f", {count:,} {fault}" for fault, count in faulty.most_common() if fault != TRUNCATED)
    if board.errors:
        message += f", {board.errors:,} set aside{top}"
    if left_out:
        message += f"; no prompts in {', '.join(str(path) for path in left_out)}"
    reporter.finish(board.answered, message, manifest="" if unanswered else str(manifest), datasets=board.counts())
    if unanswered:
        named = ", ".join(unanswered[:3]) + (", …" if len(unanswered) > 3 else "")
        print(f"generate: error: {len(unanswered)} prompts without an answer ({named}): start again", file=sys.stderr)
        return UNANSWERED
    return OK if board.answered else EMPTY


def remarks(prompts: Prompts, loaded: Loaded) -> list[str]:
    """What an operator should know of the start."""
    notes = []
    if prompts.missing:
        notes.append(f"no prompts in {', '.join(str(path) for path in prompts.missing)}: left out")
    if prompts.skipped:
        notes.append(f"{sum(prompts.skipped.values()):,} prompts that dedup dropped, not asked")
    if prompts.undecided is not None:
        notes.append(f"dedup has left nothing in {prompts.undecided}: duplicates are asked too")
    if prompts.doubled:
        notes.append(f"{sum(prompts.doubled.values()):,} prompts with the id of another, asked once")
    if loaded.moved_to:
        notes.append(f"answers of another model moved to {loaded.moved_to}")
    for reason, count in loaded.stale.items():
        notes.append(f"{count:,} answers put away: {reason} ({', '.join(loaded.stale_keys)})")
    return notes


def manifest_of(settings: Settings, board: Board) -> dict[str, Any]:
    """What the answers were made from, and what they are."""
    content = {
        "format": FORMAT,
        "model": settings.model_path,
        "stop_ids": settings.stop_ids,
        "partitions": {one.name: settings.sampling(one, None) for one in settings.partitions},
    }
    folders = (*settings.prompts, *([settings.dedup] if settings.dedup is not None else []))
    inputs = {str(path): file_hash(path / MANIFEST) for path in folders if (path / MANIFEST).is_file()}
    files = {path.name: file_hash(path) for path in sorted(settings.out.glob("*.jsonl"))}
    datasets = {
        name: {
            "prompts": one.total,
            "answered": one.answered,
            "tokens": one.tokens,
            "finish": dict(one.finish),
            "set_aside": dict(one.dropped),
            "faulty": dict(one.faults),
        }
        for name, one in board.datasets.items()
    }
    return {
        "stage": "generate",
        "content": content_hash(content),
        "settings": content,
        "inputs": inputs,
        "datasets": datasets,
        "files": files,
    }


if __name__ == "__main__":
    sys.exit(main())
