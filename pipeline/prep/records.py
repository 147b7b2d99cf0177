"""What becomes of a row: normalised messages with an identity, a group, and a side of the held-out split."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pipeline.files import content_hash
from pipeline.prep.roles import Role, count_label, printable, role_of
from pipeline.prep.shapes import Reader
from pipeline.prep.sources import Row
from pipeline.prep.tally import Tally
from pipeline.prep.turns import Call, RowError, Turn, check_text, tools_of

ID_COLUMNS: Final = ("id", "instance_id", "prompt_id", "uuid", "conversation_id", "sample_id", "raw_index", "index")
ID_LIMIT: Final = 120  # characters of a row's own id


@dataclass(frozen=True)
class Message:
    """One turn as the chat template takes it."""

    role: Role
    content: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""  # of a tool turn: the call it answers
    name: str = ""  # of a tool turn: the tool

    def for_template(self, *, parsed: bool = False) -> dict[str, Any]:
        """The dict that templates expect; the reasoning under the key most of them know.

        ``parsed``: arguments of tool calls as objects instead of JSON text, for templates that write the JSON.
        """
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.loads(call.arguments) if parsed else call.arguments,
                    },
                }
                for call in self.calls
            ]
        if self.call_id:
            message["tool_call_id"] = self.call_id
        if self.name:
            message["name"] = self.name
        return message

    def identity(self) -> list[Any]:
        """What a content hash is made of."""
        plain: list[Any] = [self.role, self.content, self.reasoning]
        called = [[asdict(call) for call in self.calls], self.call_id, self.name]
        return [*plain, *called] if any(called) else plain


@dataclass(frozen=True)
class Conversation:
    """A row that was understood."""

    row: str  # the source's own id, else the position
    position: int
    hash: str
    group: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()  # what the row declares that may be called

    def preview(self) -> list[dict[str, Any]]:
        """Its first turns, to show what a reason is about."""
        return [message.for_template() for message in self.messages[:3]]


def understand(
    row: Mapping[str, Any],
    turns: Sequence[Turn],
    *,
    position: int,
    kind: Literal["answers", "prompts"],
    group: str | None,
    labels: Counter[str],
) -> Conversation:
    """Make a conversation of a row's turns and count their labels. Raises RowError."""
    for turn in turns:
        count_label(labels, turn.label)
    messages = normalise(turns, kind)
    tools = tools_of(row)
    if tools:
        check_text(json.dumps(tools, ensure_ascii=False))
    whole = [message.identity() for message in messages]
    content = content_hash([whole, list(tools)] if tools else whole)
    named = row.get(group) if group else None
    if group and named is None:
        raise RowError("no value to group by")
    return Conversation(
        row=row_id(row, position),
        position=position,
        hash=content,
        group=content if named is None else printable(named, ID_LIMIT),
        messages=messages,
        tools=tools,
    )


def conversation_of(
    row: Row, reader: Reader, *, kind: Literal["answers", "prompts"], group: str | None, tally: Tally
) -> Conversation | None:
    """A row's conversation; None for one that is counted as dropped. Whatever is in a row, the set goes on."""
    data: Any = None
    try:
        data = row.load()
        if not isinstance(data, dict):
            raise RowError("undecodable: a row that is no object")
        return understand(data, reader(data), position=row.position, kind=kind, group=group, labels=tally.labels)
    except RowError as error:
        tally.drop(str(error), row.position, row.raw if data is None else data)
    except Exception as error:  # a row of a kind nobody thought of
        tally.drop(f"undecodable: {type(error).__name__}", row.position, row.raw if data is None else data)
    return None


def normalise(turns: Sequence[Turn], kind: Literal["answers", "prompts"]) -> tuple[Message, ...]:
    """Turns to messages: known roles, no null, cut after the last turn that matters. Raises RowError.

    Answers end with the last assistant turn; a prompt ends where the next assistant turn is to be generated.
    """
    if not turns:
        raise RowError("no turns")
    spoken: list[tuple[Role, Turn]] = []
    for turn in turns:
        role = role_of(turn.label)
        if role is None:
            raise RowError(f'unknown role "{printable(turn.label)}"')
        if role == "system" and not (turn.text or "").strip():
            continue
        spoken.append((role, turn))
    roles = [role for role, _ in spoken]
    if "user" not in roles:
        raise RowError("no user turn")
    if kind == "answers" and "assistant" not in roles:
        raise RowError("no assistant turn")
    last = ("assistant",) if kind == "answers" else ("user", "tool")
    while spoken and spoken[-1][0] not in last:
        spoken.pop()
    # After the cut, a prompt that was nothing but assistant turns after its system turn would have no user turn.
    talk = [role for role, _ in spoken if role != "system"]
    if not talk or talk[0] == "assistant":
        raise RowError("begins with an assistant turn")
    for role, turn in spoken:
        # A tool may give nothing back, and a turn that calls tools may say nothing.
        if not (turn.text or "").strip() and role != "tool" and not (role == "assistant" and turn.calls):
            raise RowError(f"an empty {role} turn")
    messages = _messages(spoken)
    for message in messages:
        check_text(message.content)
        check_text(message.reasoning)
        for call in message.calls:
            check_text(f"{call.id}{call.name}{call.arguments}")
    return messages


def _messages(spoken: Sequence[tuple[Role, Turn]]) -> tuple[Message, ...]:
    """Turns to messages; a call without an id gets one, and so does the tool turn that answers it."""
    messages = []
    waiting: list[str] = []
    number = 0
    for role, turn in spoken:
        calls = []
        for call in turn.calls if role == "assistant" else ():
            # The form that Kimi's own calls have; other templates do not show it or say what they want instead.
            calls.append(Call(call.id or f"functions.{call.name}:{number}", call.name, call.arguments))
            number += 1
        if calls:
            waiting = [call.id for call in calls]
        called = ""
        if role == "tool":
            called = turn.call_id or (waiting[0] if waiting else "")
            waiting = [one for one in waiting if one != called]
        reasoning = turn.reasoning if role == "assistant" else ""
        name = turn.name if role == "tool" else ""
        messages.append(Message(role, turn.text or "", reasoning, tuple(calls), called, name))
    return tuple(messages)


def row_id(row: Mapping[str, Any], position: int) -> str:
    """The source's own id of a row if it has one, else its position."""
    for column in ID_COLUMNS:
        value = row.get(column)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return printable(value, ID_LIMIT)
    return str(position)


def held_out(group: str, share: float) -> bool:
    """Whether a group is set aside. By the group's name alone, so that it is on the same side in every dataset."""
    number = int.from_bytes(hashlib.blake2b(group.encode(), digest_size=8).digest())
    return number < share * 2**64
