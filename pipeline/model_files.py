"""What a model's own files say of its tokenizer: ids of special tokens, and how its conversations are written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

TOKENIZER_FILES: Final = ("tokenizer_config.json", "tokenizer.json", "added_tokens.json")
REFERENCE: Final = "chat_reference.json"
"""Conversations and their text as the model's makers render them: a JSON list of objects with ``messages``, ``text``
and, where they matter, ``tools``, ``variables``, ``add_generation_prompt`` and ``ids``."""


class ModelFileError(Exception):
    """A file of the model that cannot be read; one line that says what to do."""


@dataclass(frozen=True)
class Declared:
    """A special or added token, its id, and who says so."""

    text: str
    id: int
    where: str


@dataclass(frozen=True)
class Reference:
    """A conversation and the text the model's template writes for it. ``begins``: the text is only its beginning."""

    messages: Sequence[Mapping[str, Any]]
    text: str
    where: str
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    generation_prompt: bool = False
    begins: bool = False
    ids: Sequence[int] | None = None


def declared_tokens(model: str, revision: str | None = None) -> list[Declared]:
    """The tokens that the model's files give an id; none where they name none. Raises ModelFileError."""
    declared: list[Declared] = []
    for name in TOKENIZER_FILES:
        content = read(model, name, revision)
        try:
            declared += [Declared(text, number, name) for text, number in _tokens_of(name, content)]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ModelFileError(f"{name} of {model} lists its tokens in no known way; fetch the model again") from None
    return declared


def references(model: str, revision: str | None = None) -> list[Reference]:
    """The conversations of the model's reference file; none where it has none. Raises ModelFileError."""
    content = read(model, REFERENCE, revision)
    if content is None:
        return []
    try:
        return [
            Reference(
                messages=list(item["messages"]),
                text=str(item["text"]),
                where=REFERENCE,
                tools=list(item.get("tools") or ()),
                variables=dict(item.get("variables") or {}),
                generation_prompt=bool(item.get("add_generation_prompt")),
                ids=None if item.get("ids") is None else [int(number) for number in item["ids"]],
            )
            for item in content
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelFileError(f'{REFERENCE} of {model} is no list of objects with "messages" and "text"') from None


def model_type(model: str, revision: str | None = None) -> str:
    """The family the model's config.json names; "" where it names none. Raises ModelFileError."""
    config = read(model, "config.json", revision)
    named = config.get("model_type") if isinstance(config, dict) else None
    return named if isinstance(named, str) else ""


def vocabulary_size(model: str, revision: str | None = None) -> int | None:
    """Rows of the model's output head, where its config.json says it. Raises ModelFileError."""
    config = read(model, "config.json", revision)
    if not isinstance(config, dict):
        return None
    # A vision-language model keeps the size with its text part.
    sizes = [part.get("vocab_size") for part in (config, config.get("text_config") or {})]
    return next((size for size in sizes if isinstance(size, int)), None)


def read(model: str, name: str, revision: str | None) -> Any:
    """A JSON file of the model; None where it has none. Raises ModelFileError."""
    path = _file_of(model, name, revision)
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        line = "".join(character for character in str(error) if character.isprintable())[:300]
        raise ModelFileError(f"{path} cannot be read: {line}; fetch the model again") from error


def _tokens_of(name: str, content: Any) -> list[tuple[str, int]]:
    if not isinstance(content, dict):
        return []
    if name == "added_tokens.json":
        return [(str(text), int(number)) for text, number in content.items()]
    if name == "tokenizer_config.json":
        decoder = content.get("added_tokens_decoder") or {}
        return [(str(token["content"]), int(number)) for number, token in decoder.items()]
    return [(str(token["content"]), int(token["id"])) for token in content.get("added_tokens") or []]


def _file_of(model: str, name: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    # The tokenizer was just loaded from the hub, so what there is lies in the cache.
    found = try_to_load_from_cache(model, name, revision=revision)
    return Path(found) if isinstance(found, str) else None
