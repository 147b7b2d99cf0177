"""SGLang's own load generator, ``sglang.bench_serving``, on the same server with the same prompts and sampling."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from benchmarks.sglang.place import Place
from pipeline import tokens
from pipeline.serve.metrics import parse

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class PeerRun:
    """What it reports of itself, and what the server counted meanwhile."""

    seconds: float
    completed: int
    tokens: int
    tok_s: float
    server_tokens: int  # by the growth of the server's own counter


def write_prompts(place: Place, dataset: str) -> Path:
    """The prompts as text, in the file that it reads; their ids are the same as those Draftdeck sends."""
    tokenizer = tokens.load(str(place.model))
    lines = [msgspec.json.decode(line) for line in place.records(dataset).read_bytes().splitlines()]
    texts = [tokenizer.decode(line["prompt_ids"]) for line in lines]
    assert tokenizer.encode(texts) == [line["prompt_ids"] for line in lines], "the peer would send other prompts"
    path = place.root / "peer-prompts.jsonl"
    # The second turn is only there because it wants one; the answers' budget is given.
    rows = [{"conversations": [{"content": text}, {"content": "an answer"}]} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_peer(place: Place, prompts: Path, *, stream: bool) -> PeerRun:
    """One run over all prompts, the cache of prompts emptied before. ``stream``: as it does unless told otherwise."""
    scale, result = place.scale, place.root / f"peer-stream-{stream}.jsonl"
    before = generated_tokens(place.url)
    argv = [
        sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", place.url,
        "--model", str(place.model), "--tokenizer", str(place.model), "--dataset-name", "custom",
        "--dataset-path", str(prompts), "--num-prompts", str(scale.prompts), "--max-concurrency",
        str(scale.concurrency), "--sharegpt-output-len", str(scale.max_new_tokens), "--disable-ignore-eos",
        "--temperature", str(scale.temperature), "--warmup-requests", "0", "--flush-cache", "--disable-tqdm",
        "--output-file", str(result), *(() if stream else ("--disable-stream",)),
    ]  # fmt: skip
    with result.with_suffix(".log").open("wb") as log:
        subprocess.run(argv, stdout=log, stderr=log, check=True, timeout=TIMEOUT_S, cwd=place.root)
    found = json.loads(result.read_text().splitlines()[-1])
    return PeerRun(
        seconds=round(found["duration"], 2),
        completed=found["completed"],
        tokens=found["total_output_tokens"],
        tok_s=round(found["output_throughput"], 1),
        server_tokens=generated_tokens(place.url) - before,
    )


def generated_tokens(url: str) -> int:
    """The server's count of the tokens of finished requests."""
    figures = parse(httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text)
    return figures.generated_tokens or 0


def flush(url: str) -> None:
    """Empty the server's cache of prompts: they have been asked before."""
    httpx.post(f"{url}/flush_cache", params={"timeout": 20}, timeout=30, trust_env=False).raise_for_status()
