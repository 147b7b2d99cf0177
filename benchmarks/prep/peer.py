"""The same work by ``datasets.map``: ``python -m benchmarks.prep.peer TARGET CONTEXT BUDGET FILE OUT``.

Reads the prompts of a JSONL file, renders the chat template, tokenizes, leaves out what is too long, writes JSONL.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pipeline import tokens


def main(target: str, context: int, budget: int, source: str, out: Path) -> None:
    tokens.hide_torch()
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer: Any = AutoTokenizer.from_pretrained(target)

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            for text in batch["input"]
        ]
        return {"prompt_ids": tokenizer(texts, add_special_tokens=False)["input_ids"]}

    rows = datasets.load_dataset("json", data_files=source, split="train", cache_dir=str(out.parent / "cache"))
    rows = rows.map(tokenize, batched=True)
    rows = rows.filter(lambda row: len(row["prompt_ids"]) <= context - budget)
    rows.to_json(str(out))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
