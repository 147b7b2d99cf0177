"""Bespoke Curator's LLM class over an OpenAI-compatible server.

``peer_curator.py URL PROMPTS OUT CONCURRENCY``, run by the peers' own Python.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Read when it is imported.
os.environ.update(CURATOR_DISABLE_RICH_DISPLAY="1", TELEMETRY_ENABLED="0", HF_HUB_OFFLINE="1")
os.environ.update(OPENAI_API_KEY="none", OPENAI_BASE_URL=f"{sys.argv[1]}/v1")  # of the call it tries first

from bespokelabs import curator
from datasets import Dataset


class Answers(curator.LLM):  # type: ignore[misc]
    def prompt(self, row: dict[str, Any]) -> Any:
        return row["messages"]

    def parse(self, row: dict[str, Any], response: Any) -> dict[str, Any]:
        return {"id": row["id"], "text": response}


def main(url: str, prompts: str, out: str, concurrency: int) -> None:
    with Path(prompts).open() as file:
        rows = Dataset.from_list([json.loads(line) for line in file])
    llm = Answers(
        model_name="openai/stub",
        backend="litellm",  # its own OpenAI backend fetches a tokenizer from the network
        generation_params={"temperature": 1.0, "top_p": 0.95, "max_tokens": 1024},
        backend_params={
            "base_url": f"{url}/v1",
            "api_key": "none",
            "max_requests_per_minute": 10_000_000,
            "max_tokens_per_minute": 1_000_000_000_000,
            "max_concurrent_requests": concurrency,
        },
    )
    llm(rows, working_dir=out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
