"""The shapes that conversations come in: one small function a shape, from a row to its turns.

A reader knows where a shape keeps its turns, not what the labels of the speakers mean: that is ``roles``' part. It
raises RowError for a row that is not of its shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pipeline.prep.roles import LABELS, printable
from pipeline.prep.turns import RowError, Turn, turns_of

__all__ = ["READERS", "Reader", "RowError", "Turn"]

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


Reader = Callable[[Mapping[str, Any]], list[Turn]]


def messages(row: Mapping[str, Any]) -> list[Turn]:
    """``{"messages": [{"role": …, "content": …}]}``, with tool calls where there are some."""
    return _with_system(row, turns_of(row, *TURN_KEYS["messages"]))


def conversations(row: Mapping[str, Any]) -> list[Turn]:
    """``{"system": …, "conversations": [{"from": …, "value": …}]}``."""
    return _with_system(row, turns_of(row, *TURN_KEYS["conversations"]))


def trajectory(row: Mapping[str, Any]) -> list[Turn]:
    """``{"trajectory": [{"role": …, "text": … or null, "system_prompt": … or null}]}``."""
    return _with_system(row, turns_of(row, *TURN_KEYS["trajectory"]))


def pair(row: Mapping[str, Any]) -> list[Turn]:
    """One prompt column and one response column, by their common names; the response may be missing."""
    column = _first(row, PROMPT_COLUMNS)
    if column is None:
        raise RowError("no prompt column with text")
    prompt = str(row[column])
    if not any(character.isalnum() for character in prompt):
        raise RowError(f'a prompt column that says nothing, like "{printable(prompt, 10)}"')
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
# A run of white space is looked at once, from its start: from each of its line breaks, time would grow as its square.
_SPEAKER: Final = re.compile(r"(?:\A\s*+|(?<!\s)(?=\s*?\n[ \t]*+\n[ \t]*+\n)\s++)([A-Z][A-Z_ ]{1,24}?):")
_KNOWN: Final = "|".join(
    sorted(
        {label.upper().replace("_", "[_ ]") for labels in LABELS.values() for label in labels}, key=len, reverse=True
    )
)
_LOOSE: Final = re.compile(rf"(?:\A\s*+|(?<!\s)[^\S\n]*+\n\s*+)({_KNOWN}):")


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
