"""What kind of draft a folder holds, read from its config.json and its safetensors headers; no torch needed.

SGLang loads a draft without comparing names or shapes, so whoever starts a server has to look first.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HEADER_LIMIT = 100_000_000
"""Bytes; a safetensors header is never larger, so a larger length means that the file is something else."""


class DraftError(Exception):
    """A draft folder that cannot be read; the text names the file and what is wrong with it."""


@dataclass(frozen=True)
class DraftFacts:
    """What the guard needs to know of a draft. Widths and counts are None where the folder does not say."""

    folder: str
    architectures: tuple[str, ...]
    hidden_size: int | None
    target_hidden_size: int | None
    vocab_size: int | None  # of the target, as the draft was trained
    draft_vocab_size: int | None
    has_draft_vocab_key: bool
    aux_layers: tuple[int, ...]  # eagle_aux_hidden_state_layer_ids
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)  # name to shape

    @property
    def fc_shape(self) -> tuple[int, ...] | None:
        """Shape of fc.weight: [hidden, target hidden × number of aux states]."""
        return self._shape("fc.weight")

    @property
    def head_shape(self) -> tuple[int, ...] | None:
        """Shape of lm_head.weight: [draft vocabulary, hidden]."""
        return self._shape("lm_head.weight")

    @property
    def is_eagle3(self) -> bool:
        """Whether this is an EAGLE-3 draft: by its architecture's name, or by an fc that takes three hidden states."""
        if any("eagle3" in name.lower() for name in self.architectures):
            return True
        width = self.target_hidden_size or self.hidden_size
        return self.fc_shape is not None and width is not None and self.fc_shape[-1] == 3 * width

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self.tensors.get(name) or self.tensors.get(f"model.{name}")


def inspect_draft(folder: Path) -> DraftFacts:
    """Read a draft folder. Raises DraftError where it is missing, unreadable or not a model folder."""
    config = read_config(folder)
    eagle = config.get("eagle_config")
    eagle = eagle if isinstance(eagle, dict) else {}
    layers = eagle.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids") or ()
    tensors: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(tensor_shapes(path))
    return DraftFacts(
        folder=str(folder),
        architectures=tuple(str(name) for name in config.get("architectures") or ()),
        hidden_size=_whole(config, "hidden_size"),
        target_hidden_size=_whole(config, "target_hidden_size"),
        vocab_size=_whole(config, "vocab_size"),
        draft_vocab_size=_whole(config, "draft_vocab_size"),
        has_draft_vocab_key="draft_vocab_size" in config,
        aux_layers=tuple(layer for layer in layers if isinstance(layer, int)),
        tensors=tensors,
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises DraftError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DraftError(f"{path} is missing: expected a Hugging Face model folder") from None
    except (OSError, ValueError) as error:
        raise DraftError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise DraftError(f"{path}: expected a JSON object, found {type(config).__name__}")
    return config


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a safetensors file, from its header alone. Raises DraftError."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else HEADER_LIMIT + 1
            if length > HEADER_LIMIT:
                raise DraftError(f"{path} is not a safetensors file, or is cut short")
            header = json.loads(file.read(length))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DraftError(f"{path}: its safetensors header cannot be read: {error!r}") from None


def _whole(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
