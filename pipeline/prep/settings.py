"""What a prep is told to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

SHAPES: Final = ("messages", "conversations", "pair", "dialogue", "trajectory")
"""The shapes of data there is a reader for, by their names in the config."""

FORMAT: Final = 5
"""Of the records; raised when the same settings would write something else."""


@dataclass(frozen=True)
class Settings:
    """The command line, checked."""

    dataset: str
    kind: Literal["answers", "prompts"]
    source: str
    target: str
    context_length: int
    out: Path
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()
    shape: str = "auto"
    take: int | None = None
    seed: int = 0
    train_turns: Literal["assistant", "all-but-system"] = "assistant"
    over_context: Literal["drop", "cut"] = "drop"
    group: str | None = None
    heldout_share: float = 0.02
    min_kept_share: float = 0.0
    damaged: Literal["fail", "keep"] = "fail"  # a file that cannot be read to its end
    target_revision: str | None = None
    target_family: str = ""  # as known_models names it; "": as the target's config.json says
    trust_remote_code: bool = False
    template_json: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    partition: str = "short"

    def wrote(self, written: Any) -> bool:
        """Whether a manifest's settings are these, but for the tokenizer, which is only known once it is loaded."""
        wanted = msgspec.json.decode(msgspec.json.encode(self.content("")))
        return isinstance(written, dict) and {**written, "tokenizer": ""} == wanted

    def content(self, tokenizer: str) -> dict[str, Any]:
        """The settings that change what is written. ``tokenizer`` is its fingerprint: where it lies does not matter."""
        return {
            "format": FORMAT,
            "dataset": self.dataset,
            "kind": self.kind,
            "source": self.source,
            "config": self.config,
            "split": self.split,
            "revision": self.revision,
            "files": self.files,
            "shape": self.shape,
            "take": self.take,
            "seed": self.seed,
            "train_turns": self.train_turns,
            "over_context": self.over_context,
            "group": self.group,
            "heldout_share": self.heldout_share,
            "tokenizer": tokenizer,
            "context_length": self.context_length,
            "max_new_tokens": self.max_new_tokens,
            "partition": self.partition,
        }
