"""Draftdeck on a real SGLang: its console drives a run of 5,000 prompts, the server is killed once on the way.

Beside it, on the same server with the same prompts, sampling and concurrency, SGLang's own ``bench_serving``. Needs
SGLang and its GPU, so it runs only when it is named: ``python -m benchmarks sglang``. With ``--quick`` and no SGLang
it runs on the reference server, without the peer. DRAFTDECK_BENCH_DIR names a new folder that is kept, logs and all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.sglang import evidence, peer
from benchmarks.sglang.place import FLAGS, FULL, QUICK, REFERENCE, REFERENCE_FLAGS, Place, prepare, write_config
from console import commands, headless
from console import host as hosts
from console.config import load
from console.session import Session
from console.view import Snapshot
from console.watching import Host, session_on
from pipeline.demo import container
from pipeline.protocol import JobState

SERVER: Final = "serve:baseline"
FOLDER: Final = "DRAFTDECK_BENCH_DIR"


@dataclass
class Killed:
    """When the server was killed and when it was ready again, wall clock."""

    at: float = 0.0
    ready_at: float = 0.0


def measure(quick: bool) -> dict[str, Any]:
    """Run everything once; the figures as they came."""
    real = find_spec("sglang") is not None
    if not real and not quick:
        raise SystemExit("sglang is not installed here; --quick runs on the reference server")
    scale = REFERENCE if not real else QUICK if quick else FULL
    with _folder() as root:
        place = prepare(root, scale)
        try:
            figures = asyncio.run(_measure(place))
        finally:
            container.stop(root / "container")
    _show(figures)
    return figures


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    named = os.environ.get(FOLDER)
    if named:
        Path(named).mkdir(parents=True)
        yield Path(named)
    else:
        with tempfile.TemporaryDirectory(prefix="draftdeck-sglang-") as folder:
            yield Path(folder)


async def _measure(place: Place) -> dict[str, Any]:
    real = place.scale.engine == "sglang"
    figures: dict[str, Any] = {"scale": asdict(place.scale), "flags": FLAGS if real else REFERENCE_FLAGS}
    try:
        began = time.time()
        snapshot = await _grown(place, "warm")
        figures["server_ready_s"] = round(_ready_at(snapshot) - began, 1)
        figures["whole"] = [await _whole(place, "first")]
        if real:
            prompts = peer.write_prompts(place, "first")
            figures["peer"] = asdict(await asyncio.to_thread(peer.run_peer, place, prompts, stream=False))
        # A server's own speed drifts: what the peer did is held against the runs before and after it.
        figures["whole"].append(await _whole(place, "first", "second"))
        figures["killed"] = await _killed_halfway(place)
        if real:
            figures["peer_streaming"] = asdict(await asyncio.to_thread(peer.run_peer, place, prompts, stream=True))
    finally:
        (place.root / "figures.json").write_text(json.dumps(figures, indent=2))
        await _end(place)
    return figures


async def _whole(place: Place, *datasets: str) -> dict[str, Any]:
    """A run over the last of the datasets, undisturbed."""
    peer.flush(place.url)
    snapshot = await _grown(place, "warm", *datasets)
    return asdict(evidence.our_run(place, datasets[-1], snapshot.statuses["generate"].attempt))


async def _killed_halfway(place: Place) -> dict[str, Any]:
    """The same prompts once more, the server SIGKILLed when half of them are answered."""
    killed = Killed()
    peer.flush(place.url)
    snapshot = await _grown(
        place, "warm", "first", "second", "killed", beside=lambda session: _kill(session, place, killed)
    )
    attempt = snapshot.statuses["generate"].attempt
    ours = evidence.our_run(place, "killed", attempt)
    seen = evidence.kill_seen(place, "killed", attempt, killed.at, killed.ready_at)
    said = [event.text for event in reversed(snapshot.events) if event.job == SERVER and event.at >= killed.at]
    return {**asdict(ours), **asdict(seen), "said": said}


async def _kill(session: Session, place: Place, killed: Killed) -> None:
    while _answered(session.snapshot, "killed") < place.scale.prompts // 2:  # noqa: ASYNC110 - the session tells one
        await asyncio.sleep(0.1)
    pid = session.snapshot.statuses[SERVER].pid
    assert pid is not None
    killed.at = time.time()
    os.kill(pid, signal.SIGKILL)
    while (ready_at := _ready_at(session.snapshot)) < killed.at:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    killed.ready_at = ready_at


def _answered(snapshot: Snapshot, dataset: str) -> int:
    sample = snapshot.beat.jobs.get("generate") if snapshot.beat else None
    found = sample.progress.datasets.get(dataset) if sample and sample.progress else None
    return found.kept if found else 0


def _ready_at(snapshot: Snapshot) -> float:
    """When the server was last found ready, wall clock; 0 where it is not ready."""
    status = snapshot.statuses.get(SERVER)
    return status.since if status is not None and status.state is JobState.READY else 0.0


async def _grown(
    place: Place, *datasets: str, beside: Callable[[Session], Coroutine[Any, Any, None]] | None = None
) -> Snapshot:
    """The run with one dataset more, as an operator adds it: a table in the config, and apply. Followed to its end."""
    write_config(place, *datasets)
    assert await commands.apply(Host(place.config), dry_run=False, confirm=()) == commands.WELL
    config = load(place.config)
    async with hosts.connected(config) as link:
        session = session_on(config, lambda: contextlib.nullcontext(link), read_only=True)
        task = asyncio.create_task(beside(session)) if beside is not None else None
        try:
            snapshot = await headless.follow(session)
        finally:
            if task is not None and not task.done():
                task.cancel()
        if task is not None:
            with contextlib.suppress(asyncio.CancelledError):  # a run that failed is told of below
                await task
    status = snapshot.statuses["generate"]
    assert status.state is JobState.DONE, f"generate: {status.state} {status.reason}"
    return snapshot


async def _end(place: Place) -> None:
    config = load(place.config)
    async with hosts.connected(config) as link:
        await hosts.end(await hosts.found(link, config))


def _show(figures: dict[str, Any]) -> None:
    scale, whole, killed = figures["scale"], figures["whole"], figures["killed"]
    print(f"\n| {scale['prompts']:,} prompts, {scale['concurrency']} at once | tok/s | tokens | seconds |")
    print("| --- | --- | --- | --- |")
    named = {"bench_serving, between the two": "peer", "bench_serving, streaming": "peer_streaming"}
    rows = [("Draftdeck", one) for one in whole] + [
        (name, figures[key]) for name, key in named.items() if key in figures
    ]
    for name, one in rows:
        print(f"| {name} | {one['tok_s']:,.0f} | {one['tokens']:,} | {one['seconds']:,.1f} |")
    print(
        f"| Draftdeck, the server killed at {killed['answered_before']:,} | {killed['tok_s']:,.0f} "
        f"| {killed['tokens']:,} | {killed['seconds']:,.1f} |"
    )
    print(
        f"killed: {killed['tok_s_before']:,.0f} tok/s before, ready again after {killed['ready_again_s']:.1f} s, "
        f"answers again after {killed['answers_again_s']:.1f} s; each prompt has one answer"
    )
    if "peer" in figures:
        mean = statistics.fmean(one["tok_s"] for one in whole)
        print(f"Draftdeck has {mean / figures['peer']['tok_s']:.1%} of bench_serving's tok/s")
