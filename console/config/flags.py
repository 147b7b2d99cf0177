"""The model server's flags: which a table gives, under which names, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from console.config.fields import FlagValue
from console.config.schema import Config

SAME: Final = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "model": "model-path",
    "speculative-algo": "speculative-algorithm",
    "speculative-draft-model": "speculative-draft-model-path",
}
"""Second names of SGLang's flags, and the ones that are written here."""

NAMED: Final = {
    "model-path": "target.path or target.model",
    "host": "serve.host",
    "port": "serve.baseline.port and serve.draft.port",
    "revision": "target.revision",
    "trust-remote-code": "target.trust_remote_code",
    "speculative-algorithm": "serve.draft.algorithm",
    "speculative-draft-model-path": "draft.path",
    "speculative-num-steps": "serve.draft.steps",
    "speculative-eagle-topk": "serve.draft.topk",
    "speculative-num-draft-tokens": "serve.draft.draft_tokens",
}
"""Flags that have a key of their own in the config, and that key."""


def canonical(name: str) -> str:
    """The one name of a flag that may be written in several ways."""
    return SAME.get(name, name)


def merged(*tables: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """One table of them all; a later one's value stands, ``false`` takes a flag away."""
    flags: dict[str, FlagValue] = {}
    for table in tables:
        flags |= {canonical(name): value for name, value in table.items()}
    return {name: value for name, value in flags.items() if value is not False}


def baseline_flags(config: Config) -> dict[str, FlagValue]:
    """Flags of the target's server without a draft."""
    return merged(config.serve.flags, config.serve.baseline.flags)


def draft_flags(config: Config) -> dict[str, FlagValue]:
    """Flags of the server with the draft, beside those that ``[serve.draft]`` has keys for."""
    return merged(config.serve.flags, config.serve.draft.flags if config.serve.draft is not None else {})


def whole(flags: Mapping[str, FlagValue], name: str) -> int | None:
    """A flag's value as a whole number; None where it is not given or is none."""
    value = flags.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value) if len(str(value)) <= 18 else None
    except ValueError:
        return None


def served_context(config: Config) -> int:
    """Tokens that a prompt and its answer may have together."""
    return whole(baseline_flags(config), "context-length") or config.target.context_length
