"""datatrove's InferenceRunner against a running server, with its checkpoints, so that a kill loses nothing either.

``peer_datatrove.py URL PROMPTS OUT CONCURRENCY``, run by the peers' own Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.writers import JsonlWriter


async def rollout(document: Any, generate: Callable[[dict[str, Any]], Awaitable[Any]]) -> dict[str, Any]:
    answer = await generate({"messages": document.metadata["messages"], "max_tokens": 1024})
    return {"text": answer.text, "finish": answer.finish_reason}


def documents(prompts: str) -> Iterator[Any]:
    with Path(prompts).open() as file:
        for line in file:
            row = json.loads(line)
            yield Document(text=row["id"], id=row["id"], metadata={"messages": row["messages"]})


def main(url: str, prompts: str, out: str, concurrency: int) -> None:
    config = InferenceConfig(
        server_type="endpoint",
        endpoint_url=url,
        model_name_or_path="stub",
        max_concurrent_generations=concurrency,
        default_generation_params={"temperature": 1.0, "top_p": 0.95},
    )
    runner = InferenceRunner(
        rollout,
        config,
        JsonlWriter(out, output_filename="${rank}_${chunk_index}.jsonl", compression=None),
        checkpoints_local_dir=str(Path(out) / "checkpoints"),
        records_per_chunk=1000,
    )
    runner.run(documents(prompts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
