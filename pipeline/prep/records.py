"""What becomes of a row: normalised messages with an identity, a group, and a side of the held-out split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pipeline.files import content_hash
from pipeline.prep.roles import Role, printable, role_of
from pipeline.prep.shapes import RowError, Turn

ID_COLUMNS: Final = ("id", "instance_id", "prompt_id", "uuid", "conversation_id", "sample_id", "raw_index", "index")
ID_LIMIT: Final = 120  # characters of a row's own id


@dataclass(frozen=True)
class Message:
    """One turn as the chat template takes it."""

    role: Role
    content: str
    reasoning: str = ""

    def for_template(self) -> dict[str, str]:
        """The dict that templates expect; the reasoning under the key most of them know."""
        message = {"role": self.role, "content": self.content}
        return {**message, "reasoning_content": self.reasoning} if self.reasoning else message


@dataclass(frozen=True)
class Conversation:
    """A row that was understood."""

    row: str  # the source's own id, else the position
    position: int
    hash: str
    group: str
    messages: tuple[Message, ...]

    def preview(self) -> list[dict[str, str]]:
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
    labels.update(printable(turn.label) for turn in turns)
    messages = normalise(turns, kind)
    content = content_hash([[message.role, message.content, message.reasoning] for message in messages])
    named = row.get(group) if group else None
    if group and named is None:
        raise RowError("no value to group by")
    return Conversation(
        row=row_id(row, position),
        position=position,
        hash=content,
        group=content if named is None else printable(named, ID_LIMIT),
        messages=messages,
    )


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
        if not (turn.text or "").strip():
            raise RowError(f"an empty {role} turn")
    messages = tuple(Message(role, turn.text or "", turn.reasoning) for role, turn in spoken)
    for message in messages:
        _check_text(message.content)
        _check_text(message.reasoning)
    return messages


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


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RowError("undecodable: a lone surrogate in the text") from None
