"""Who speaks: the labels that public datasets give, and the four roles a chat template knows."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal

Role = Literal["system", "user", "assistant", "tool"]

LABELS: Final[dict[Role, tuple[str, ...]]] = {
    "user": ("user", "human", "prompter", "usr", "customer", "instruction", "question"),
    "assistant": (
        "assistant",
        "gpt",
        "ai",
        "model",
        "bot",
        "chatgpt",
        "bing",
        "bard",
        "claude",
        "chatbot",
        "llm",
        "answer",
    ),
    "system": ("system", "developer", "system_prompt"),
    "tool": (
        "tool",
        "function",
        "observation",
        "function_response",
        "function_result",
        "tool_response",
        "tool_result",
        "environment",
        "ipython",
    ),
}
"""The labels of each role, in lower case with underscores."""

LABELS_COUNTED: Final = 1000
"""Labels counted by name; rows may give any number of them, the memory has room for some."""

OTHER: Final = "other labels"

_ROLES: Final[dict[str, Role]] = {label: role for role, labels in LABELS.items() for label in labels}


def role_of(label: str) -> Role | None:
    """The role a label stands for; None for one nobody knows."""
    return _ROLES.get("_".join(label.strip().lower().replace("-", " ").replace("_", " ").split()))


def printable(text: Any, limit: int = 40) -> str:
    """Text of others for one line of ours: control characters removed, cut to ``limit``."""
    line = str(text)[: 4 * limit]
    if not line.isprintable():
        line = "".join(character if character.isprintable() else " " for character in line)
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def count_label(labels: Counter[str], label: str) -> None:
    """Count a label as it is written; past ``LABELS_COUNTED`` different ones a new one under its role or OTHER."""
    name = printable(label)
    if name not in labels and len(labels) >= LABELS_COUNTED:
        name = role_of(label) or OTHER
    labels[name] += 1


def seen(labels: Counter[str]) -> str:
    """A histogram of labels in words: ``"asker" 240, "replier" 240``, the ten most common ones."""
    parts = [f'"{label}" {count:,}' for label, count in sorted(labels.items(), key=lambda item: (-item[1], item[0]))]
    return ", ".join(parts[:10]) + (f" and {len(parts) - 10} more" if len(parts) > 10 else "")


def expected(role: Role) -> str:
    """The labels that would have been understood: ``user, human, prompter, …``."""
    return ", ".join(LABELS[role])
