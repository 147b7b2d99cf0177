"""Requests a second, CPU and memory of generate and of its peers, against a server that costs next to nothing."""

from __future__ import annotations

import heapq
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

HERE: Final = Path(__file__).resolve().parent
FOLDER: Final = HERE.parents[1] / ".bench" / "generate"
PEERS: Final = (
    "openai[aiohttp]==2.30.0",
    "bespokelabs-curator==0.1.31",
    "datatrove==0.10.1",
    "orjson==3.13.0",  # of datatrove's checkpoints, as is the next
    "aiosqlite==0.22.1",
)
TITLES: Final = {
    "draftdeck": "Draftdeck",
    "openai": "openai client",
    "datatrove": "datatrove InferenceRunner",
    "curator": "Curator",
}
REQUESTS: Final = 20_000
QUICK_REQUESTS: Final = 2_000
OF_PEERS: Final = 4
"""The peers get a part of the requests: theirs take several times as long each."""

WHOLE_RUN: Final = 83_288
PROMPT_TOKENS: Final = 100


@dataclass(frozen=True)
class Scene:
    """A server with a latency, and so many slots to keep full."""

    name: str
    slots: int
    low_s: float = 0.0
    high_s: float = 0.0


SCENES: Final = (
    Scene("instant_150", 150),
    Scene("instant_512", 512),
    Scene("latency_150", 150, 0.05, 0.5),
    Scene("latency_512", 512, 0.05, 0.5),
)


def measure(quick: bool) -> dict[str, Any]:
    """Every client through every scene; print the tables."""
    install()
    requests = QUICK_REQUESTS if quick else REQUESTS
    figures: dict[str, Any] = {"requests": requests, "requests_of_peers": requests // OF_PEERS, "answer_tokens": 800}
    with tempfile.TemporaryDirectory(prefix="draftdeck-generate-") as name:
        folder = Path(name)
        for scene in SCENES:
            figures[scene.name] = {
                who: run(who, scene, folder, requests if who == "draftdeck" else requests // OF_PEERS) for who in TITLES
            }
            _table(scene, figures[scene.name])
        if not quick:
            figures["whole_run"] = {"requests": WHOLE_RUN, **run("draftdeck", SCENES[0], folder, WHOLE_RUN)}
            print(
                f"\n{WHOLE_RUN:,} requests: peak {figures['whole_run']['peak_mib']} MiB, where {requests:,} took "
                f"{figures['instant_150']['draftdeck']['peak_mib']} MiB."
            )
    return figures


def install() -> None:
    """The peers into a folder of their own, on first use."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    known = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    if any(peer.replace("[aiohttp]", "") not in known for peer in PEERS):
        subprocess.run([python, "-m", "pip", "install", "-q", *PEERS], check=True)


def write_prompts(folder: Path, count: int) -> None:
    """The same prompts for Draftdeck as ids, as prep writes them, and for the peers as messages."""
    draw = random.Random(1)
    (folder / "prompts").mkdir(exist_ok=True)
    with (folder / "prompts" / "records.jsonl").open("w") as ours, (folder / "prompts.jsonl").open("w") as theirs:
        for number in range(count):
            ids = [draw.randrange(1000, 160_000) for _ in range(PROMPT_TOKENS)]
            messages = [{"role": "user", "content": f"{number}: " + "a word or two " * (PROMPT_TOKENS // 4)}]
            record = {
                "dataset": f"B{number % 8 + 1}",
                "row": str(number),
                "hash": f"{number:012x}",
                "partition": "short",
                "prompt_ids": ids,
                "messages": messages,
            }
            ours.write(json.dumps(record) + "\n")
            theirs.write(json.dumps({"id": str(number), "messages": messages}) + "\n")


def run(who: str, scene: Scene, folder: Path, requests: int) -> dict[str, float]:
    """One client against a fresh server, each on a core of its own."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    write_prompts(folder, requests)
    with serving(scene) as url:
        began = time.monotonic()
        with (folder / f"{who}.log").open("ab") as log:
            process = subprocess.Popen(
                _on(0, command(who, url, scene, folder, out)),
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(HERE.parents[1])},
                cwd=folder,
            )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        stats = httpx.get(f"{url}/stats", trust_env=False, timeout=60).json()
    if process.returncode or stats["answered"] < requests:
        words = (folder / f"{who}.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{who}: exit code {process.returncode}, {stats['answered']:,} of {requests:,}: {words}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return {
        "requests_s": round(requests / stats["seconds"], 1),
        "of_ceiling": round(ceiling_s(stats["latencies"], scene.slots) / stats["seconds"], 4),
        "cpu_s_per_1000": round(1000 * cpu_s / requests, 3),
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
        "most_in_flight": stats["most"],
        "wall_s": round(wall_s, 1),
    }


def command(who: str, url: str, scene: Scene, folder: Path, out: Path) -> list[str]:
    if who != "draftdeck":
        target = out if who != "openai" else folder / "out.jsonl"
        target.unlink(missing_ok=True) if target.is_file() else None
        script = str(HERE / f"peer_{who}.py")
        return [
            str(FOLDER / "bin" / "python"),
            script,
            url,
            str(folder / "prompts.jsonl"),
            str(target),
            str(scene.slots),
        ]
    partition = {"name": "short", "concurrency": scene.slots, "max_new_tokens": 1024, "top_p": 0.95}
    return [
        sys.executable, "-m", "pipeline.generate", "--server", url, "--prompts", str(folder / "prompts"),
        "--partition", json.dumps(partition), "--stop-id", "2", "--model-path", "stub", "--out", str(out),
    ]  # fmt: skip


def ceiling_s(latencies: Sequence[float], slots: int) -> float:
    """Seconds that the same latencies take where every slot is filled again at once."""
    free = [0.0] * slots
    for latency in latencies:
        heapq.heapreplace(free, free[0] + latency)
    return max(free)


@contextmanager
def serving(scene: Scene) -> Iterator[str]:
    """A stub of its own for every client; the URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--port", str(port), "--low", str(scene.low_s), "--high", str(scene.high_s)]
    process = subprocess.Popen(_on(1, [sys.executable, "-m", "benchmarks.generate.stub", *arguments]))
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"{url}/health", trust_env=False)
                break
            except httpx.ConnectError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()


def _on(core: int, argv: list[str]) -> list[str]:
    """Client and server do not take each other's core, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[core]), *argv] if len(cores) > 1 else argv


def _table(scene: Scene, rows: dict[str, dict[str, float]]) -> None:
    latency = f"{scene.low_s * 1000:.0f} to {scene.high_s * 1000:.0f} ms" if scene.high_s else "answers at once"
    print(f"\n| {scene.slots} slots, {latency} | requests/s | of the ceiling | CPU s per 1,000 | peak |")
    print("| --- | --- | --- | --- | --- |")
    for who, title in TITLES.items():
        row = rows[who]
        share = f"{row['of_ceiling']:.1%}" if scene.high_s else ""
        print(f"| {title} | {row['requests_s']:,.0f} | {share} | {row['cpu_s_per_1000']} | {row['peak_mib']:.0f} MiB |")
