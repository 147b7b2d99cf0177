"""The shapes that conversations come in: one small function a shape, from a row to its turns.

A reader knows where a shape keeps its turns, not what the labels of the speakers mean: that is ``roles``' part. It
raises RowError for a row that is not of its shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pipeline.prep.roles import LABELS

CHAT_COLUMNS: Final = (
    "messages", "conversations", "conversation", "trajectory", "turns", "chat", "dialog", "dialogue", "history",
    "raw_conv_json",
)  # fmt: skip
PROMPT_COLUMNS: Final = ("prompt", "instruction", "question", "problem", "query", "input", "user", "human")
RESPONSE_COLUMNS: Final = (
    "response", "output", "answer", "solution", "completion", "assistant", "generation", "deepseek_solution", "chosen",
)  # fmt: skip
REASONING_COLUMNS: Final = ("reasoning", "reasoning_content", "thinking", "deepseek_reasoning")
DIALOGUE_COLUMNS: Final = ("chat", "sample", "dialogue", "dialog", "conversation", "text")
SYSTEM_COLUMNS: Final = ("system", "system_prompt")
TURN_KEYS: Final = {"messages": ("role", "content"), "conversations": ("from", "value"), "trajectory": ("role", "text")}
"""Who speaks and what is said, in a shape that is a list of turns."""

END_LITERALS: Final = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>")
"""End tokens of other models, written out in their answers."""


class RowError(Exception):
    """Why a row cannot be used: a reason in words, the same for all rows it holds for."""


@dataclass(frozen=True)
class Turn:
    """What one speaker says. ``text`` None: the row has null there."""

    label: str
    text: str | None
    reasoning: str = ""


Reader = Callable[[Mapping[str, Any]], list[Turn]]


def messages(row: Mapping[str, Any]) -> list[Turn]:
    """``{"messages": [{"role": …, "content": …}]}``, also as a JSON string, also under another column's name."""
    turns = []
    for item in _items(row, *TURN_KEYS["messages"]):
        text = _text(item["content"], "content")
        if not text and item.get("tool_calls"):
            raise RowError("structured tool calls")
        reasoning = item.get("reasoning_content")
        turns.append(Turn(_label(item["role"]), text, reasoning if isinstance(reasoning, str) else ""))
    return _with_system(row, turns)


def conversations(row: Mapping[str, Any]) -> list[Turn]:
    """``{"system": …, "conversations": [{"from": …, "value": …}]}``."""
    turns = [
        Turn(_label(item["from"]), _text(item["value"], "value")) for item in _items(row, *TURN_KEYS["conversations"])
    ]
    return _with_system(row, turns)


def trajectory(row: Mapping[str, Any]) -> list[Turn]:
    """``{"trajectory": [{"role": …, "text": … or null, "system_prompt": … or null}]}``."""
    turns = []
    for item in _items(row, *TURN_KEYS["trajectory"]):
        text = item["text"] if item["text"] is not None else item.get("system_prompt")
        turns.append(Turn(_label(item["role"]), _text(text, "text")))
    return turns


def pair(row: Mapping[str, Any]) -> list[Turn]:
    """One prompt column and one response column, by their common names; the response may be missing."""
    column = _first(row, PROMPT_COLUMNS)
    if column is None:
        raise RowError("no prompt column with text")
    prompt = str(row[column])
    if column == "instruction" and isinstance(row.get("input"), str) and row["input"].strip():
        prompt = f"{prompt}\n\n{row['input']}"
    turns = [Turn("user", prompt)]
    answer = _first(row, RESPONSE_COLUMNS)
    if answer is not None:
        thought = _first(row, REASONING_COLUMNS)
        turns.append(Turn("assistant", str(row[answer]), str(row[thought]) if thought else ""))
    return _with_system(row, turns)


def dialogue(row: Mapping[str, Any]) -> list[Turn]:
    """One string with the speakers' labels in it: ``USER: …`` blank lines ``ASSISTANT: … <|endoftext|>``."""
    column = _first(row, DIALOGUE_COLUMNS)
    if column is None:
        raise RowError("no dialogue column with text")
    turns = _split(str(row[column]))
    if not turns:
        raise RowError("no speaker label in the dialogue")
    return _with_system(row, turns)


READERS: Final[dict[str, Reader]] = {
    "trajectory": trajectory,
    "conversations": conversations,
    "messages": messages,
    "dialogue": dialogue,
    "pair": pair,
}
"""By name; the most particular shape first, so that detection prefers it."""


# A label opens the string or follows two blank lines; there any word in capitals counts, so that an unknown speaker is
# seen as one. Inside a turn's text only a known label after a line break counts, and only where nothing else splits it.
_SPEAKER: Final = re.compile(r"(?:\A\s*|\n[ \t]*\n[ \t]*\n\s*)([A-Z][A-Z_ ]{1,24}?):")
_KNOWN: Final = "|".join(
    sorted(
        {label.upper().replace("_", "[_ ]") for labels in LABELS.values() for label in labels}, key=len, reverse=True
    )
)
_LOOSE: Final = re.compile(rf"(?:\A\s*|\n\s*)({_KNOWN}):")


def _split(text: str) -> list[Turn]:
    marks = list(_SPEAKER.finditer(text))
    if len(marks) < 2:
        marks = list(_LOOSE.finditer(text)) or marks
    if not marks or text[: marks[0].start()].strip():
        return []
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    turns = []
    for mark, end in zip(marks, ends, strict=True):
        said = text[mark.end() : end].strip()
        for literal in END_LITERALS:
            said = said.removesuffix(literal).rstrip()
        turns.append(Turn(mark.group(1), said))
    return turns


def _columns(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (column for column in CHAT_COLUMNS if column in row)
    yield from (column for column in row if column not in CHAT_COLUMNS)


def _items(row: Mapping[str, Any], who: str, what: str) -> list[Mapping[str, Any]]:
    """The list of turns, whichever column it is in: objects with the keys ``who`` and ``what``."""
    trouble = ""
    empty = False
    for column in _columns(row):
        value = row[column]
        named = column in CHAT_COLUMNS
        if isinstance(value, str) and value.lstrip()[:1] == "[" and (named or '"' in value[:4096]):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                trouble = trouble or ("undecodable: JSON in a string is broken" if named else "")
                continue
        if not isinstance(value, list | tuple):
            if named and value is None:
                trouble = trouble or f'"{column}" is null'
            continue
        if not value:
            empty = empty or named
            continue
        items = [item for item in value if isinstance(item, Mapping)]
        if len(items) == len(value) and all(who in item and what in item for item in items):
            return items
        if named:
            trouble = trouble or f'a turn without "{who}" and "{what}"'
    if empty and not trouble:
        return []
    raise RowError(trouble or f'no list of turns with "{who}" and "{what}"')


def _label(value: Any) -> str:
    if not isinstance(value, str):
        raise RowError(f"a role that is {_kind(value)}")
    return value


def _text(value: Any, key: str) -> str | None:
    """A turn's text: a string, null, or a list of parts of which the texts are joined."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value):
            return "".join(part["text"] for part in value)
        raise RowError("a turn with parts that are not text")
    raise RowError(f'"{key}" is {_kind(value)}')


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object" if isinstance(value, Mapping) else "no text"


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> str | None:
    for column in columns:
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            return column
    return None


def _with_system(row: Mapping[str, Any], turns: list[Turn]) -> list[Turn]:
    """Put the row's own system column before its turns, where they do not begin with one."""
    column = _first(row, SYSTEM_COLUMNS)
    if column is None or not turns or turns[0].label.strip().lower() == "system":
        return turns
    text = str(row[column]).strip()
    return [Turn("system", text.removeprefix("SYSTEM:").strip()), *turns]
