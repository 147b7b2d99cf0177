"""Hashes over the keys that change what a job writes, and what one key's change does."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import msgspec

from console.config.fields import class_of


def content_of(section: Any, *names: str) -> dict[str, Any]:
    """The content keys of a section, sections within it included; ``names``: these alone."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(section):
        if names and field.name not in names:
            continue
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            found[field.name] = content_of(value)
        elif class_of(field) == "content":
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return content_of(value)
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value


def content_hash(value: Any) -> str:
    """16 hex digits that name a JSON-like value: the same for equal values whatever the order of keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]
