"""Turns of a conversation, and the lists of them that rows hold: as they are, as JSON in a string, nested once more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

CHAT_COLUMNS: Final = (
    "messages", "conversations", "conversation", "trajectory", "turns", "chat", "dialog", "dialogue", "history",
    "raw_conv_json",
)  # fmt: skip
REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
TOOL_COLUMN: Final = "tools"
_DEPTH: Final = 3  # a column's value, what it wraps, and once more


class RowError(Exception):
    """Why a row cannot be used: a reason in words, the same for all rows it holds for."""


class MaskError(RowError):
    """A sample on which the loss mask would be all 0, all 1, or not what the target wrote."""


@dataclass(frozen=True)
class Call:
    """One call of a tool. ``arguments`` is JSON text, as the row has it where it is text there."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """What one speaker says. ``text`` None: the row has null there. ``call_id``: the call a tool turn answers."""

    label: str
    text: str | None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""


def check_text(text: str) -> None:
    """Raises RowError where no tokenizer can take the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RowError("undecodable: a lone surrogate in the text") from None


def turns_of(row: Mapping[str, Any], who: str, what: str) -> list[Turn]:
    """The turns of a row's list, whichever column it is in. Raises RowError."""
    return [_turn(item, who, what) for item in _items(row, who, what)]


def tools_of(row: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The tools a row declares, as chat templates take them; none where it has no such column. Raises RowError."""
    value = _decoded(row.get(TOOL_COLUMN) or (), "tools that are broken JSON")
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise RowError(f"tools that are {kind(value)}")
    return tuple(_tool(_decoded(item, "tools that are broken JSON")) for item in value)


def kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list | tuple) else "an object" if isinstance(value, Mapping) else "no text"


def _tool(item: Any) -> dict[str, Any]:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RowError("a tool without a name")
    tool: dict[str, Any] = _given(item if "function" in item else {"type": "function", "function": function})
    return tool


def _given(value: Any) -> Any:
    """A value without the nulls in its objects: Parquet gives every object the keys of all."""
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list | tuple) else value


def _items(row: Mapping[str, Any], who: str, what: str) -> list[Mapping[str, Any]]:
    """The list of turns: objects with the keys ``who`` and ``what``."""
    trouble = ""
    empty = False
    for column in _columns(row):
        named = column in CHAT_COLUMNS
        try:
            found = _unwrapped(row[column], who, what, named=named, depth=_DEPTH)
        except RowError as error:
            trouble = trouble or str(error)
            continue
        if found:
            return found
        if named and row[column] is None:
            trouble = trouble or f'"{column}" is null'
        empty = empty or (named and found is not None)
    if empty and not trouble:
        return []
    raise RowError(trouble or f'no list of turns with "{who}" and "{what}"')


def _unwrapped(value: Any, who: str, what: str, *, named: bool, depth: int) -> list[Mapping[str, Any]] | None:
    """The turns a value holds; None for a value that holds none. Raises RowError where a named column is broken."""
    if isinstance(value, str):
        start = value.lstrip()[:1]
        if not (start == "[" and (named or '"' in value[:4096])) and not (start == "{" and named):
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            if named:
                raise RowError("undecodable: JSON in a string is broken") from None
            return None
    if isinstance(value, Mapping):
        return _inside(value, who, what, named=named, depth=depth)
    if not isinstance(value, list | tuple):
        return None
    if not value:
        return []
    items = [_object(item) for item in value]
    if all(isinstance(item, Mapping) for item in items):
        if all(_is_turn(item, who, what) for item in items):
            return items
        inner = [next(iter(item.values()), None) if len(item) == 1 else None for item in items]
        if all(isinstance(item, Mapping) and _is_turn(item, who, what) for item in inner):
            return [item for item in inner if isinstance(item, Mapping)]
        if len(items) == 1 and (found := _inside(items[0], who, what, named=named, depth=depth)):
            return found
    elif depth and all(isinstance(item, list | tuple) and len(item) == 1 for item in items):
        return _unwrapped([item[0] for item in items], who, what, named=named, depth=depth - 1)
    elif depth and len(items) == 1:
        return _unwrapped(items[0], who, what, named=named, depth=depth - 1)
    if named:
        raise RowError(f'a turn without "{who}" and "{what}"')
    return None


def _inside(
    value: Mapping[str, Any], who: str, what: str, *, named: bool, depth: int
) -> list[Mapping[str, Any]] | None:
    """The turns of an object that wraps them."""
    if not depth:
        return None
    for column in _columns(value):
        inner = named or column in CHAT_COLUMNS
        if isinstance(value[column], list | tuple | Mapping) or column in CHAT_COLUMNS:
            found = _unwrapped(value[column], who, what, named=inner and column in CHAT_COLUMNS, depth=depth - 1)
            if found:
                return found
    return None


def _object(item: Any) -> Any:
    """An item of a list, decoded where it is an object or a list in a string."""
    if isinstance(item, str) and item.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(item)
        except (ValueError, RecursionError):
            return item
    return item


def _is_turn(item: Any, who: str, what: str) -> bool:
    return who in item and (what in item or bool(item.get("tool_calls") or item.get("function_call")))


def _columns(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (column for column in CHAT_COLUMNS if column in row)
    yield from (column for column in row if column not in CHAT_COLUMNS)


def _turn(item: Mapping[str, Any], who: str, what: str) -> Turn:
    label = item[who]
    if not isinstance(label, str):
        raise RowError(f"a role that is {kind(label)}")
    reasoning = next((item[key] for key in REASONING_KEYS if isinstance(item.get(key), str)), "")
    called, name = item.get("tool_call_id"), item.get("name")
    text = item.get(what)
    return Turn(
        label,
        _text(item.get("system_prompt") if text is None else text, what),
        reasoning,
        _calls(item),
        called if isinstance(called, str) else "",
        name if isinstance(name, str) else "",
    )


def _text(value: Any, key: str) -> str | None:
    """A turn's text: a string, null, or a list of parts of which the texts are joined."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        value = [value]
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in value]
        if all(isinstance(part, str) for part in parts):
            return "".join(str(part) for part in parts)
        raise RowError("a turn with parts that are not text")
    raise RowError(f'"{key}" is {kind(value)}')


def _calls(item: Mapping[str, Any]) -> tuple[Call, ...]:
    """A turn's structured tool calls, as OpenAI's API writes them, the older ``function_call`` included."""
    value = item.get("tool_calls") or ([item["function_call"]] if item.get("function_call") else [])
    value = _decoded(value, "tool calls that are broken JSON")
    if not isinstance(value, list | tuple):
        raise RowError(f"tool calls that are {kind(value)}")
    return tuple(_call(_decoded(call, "tool calls that are broken JSON")) for call in value)


def _call(call: Any) -> Call:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RowError("a tool call without a name")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(_given(arguments), ensure_ascii=False)
    elif arguments is None or arguments == "":
        arguments = "{}"
    if not isinstance(arguments, str):
        raise RowError(f"tool call arguments that are {kind(arguments)}")
    return Call(call["id"] if isinstance(call.get("id"), str) else "", function["name"], arguments)


def _decoded(value: Any, trouble: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise RowError(trouble) from None
