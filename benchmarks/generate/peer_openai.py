"""OpenAI's own client as people use it for bulk: a pool of workers, a line appended for each answer.

``peer_openai.py URL PROMPTS OUT CONCURRENCY``, run by the peers' own Python.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI


async def main(url: str, waiting: Iterator[dict[str, Any]], out: str, concurrency: int) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=3, timeout=3600)
    with Path(out).open("a") as answers:  # noqa: ASYNC230 - as is usual

        async def work() -> None:
            for prompt in waiting:
                reply = await client.chat.completions.create(
                    model="stub", messages=prompt["messages"], temperature=1.0, top_p=0.95, max_tokens=1024
                )
                choice = reply.choices[0]
                line = {"id": prompt["id"], "text": choice.message.content, "finish": choice.finish_reason}
                answers.write(json.dumps(line) + "\n")

        await asyncio.gather(*(work() for _ in range(concurrency)))


if __name__ == "__main__":
    prompts = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    asyncio.run(main(sys.argv[1], iter(prompts), sys.argv[3], int(sys.argv[4])))
