"""Draft and target folders as the guard reads them: config.json and safetensors headers, no weights behind them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

WIDTH, VOCABULARY, DRAFT_VOCABULARY = 64, 1000, 200


def write_config(folder: Path, **keys: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def write_header(path: Path, **shapes: tuple[int, ...]) -> None:
    header = {
        name.replace("__", "."): {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
        for name, shape in shapes.items()
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def make_eagle3(folder: Path, *, width: int = WIDTH, vocabulary: int = VOCABULARY, **keys: Any) -> Path:
    """An EAGLE-3 draft of a target ``width`` wide."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": width,
        "vocab_size": vocabulary,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 5, 8]},
    }
    write_config(folder, **{**config, **keys})
    write_header(folder / "model.safetensors", fc__weight=(width, 3 * width), lm_head__weight=(DRAFT_VOCABULARY, width))
    return folder


def make_eagle1(folder: Path) -> Path:
    """A draft of the first EAGLE: its fc joins embedding and hidden state."""
    write_config(folder, architectures=["LlamaForCausalLMEagle"], hidden_size=WIDTH, vocab_size=VOCABULARY)
    write_header(folder / "model.safetensors", fc__weight=(WIDTH, 2 * WIDTH))
    return folder


def make_target_config(folder: Path, *, width: int = WIDTH, vocabulary: int = VOCABULARY) -> Path:
    return write_config(folder, architectures=["LlamaForCausalLM"], hidden_size=width, vocab_size=vocabulary)
