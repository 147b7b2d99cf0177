"""Where in a rendered conversation the target's own text is: its turns and their end tokens, not their headers.

Three ways, each proved by comparing the span's text with the turn: the template's generation markers; the header that
the template writes to make the target begin; rendering the conversation up to before and up to after each turn.

A template may show less of a turn than was written, most often its thinking once the conversation has gone on. Then
what it shows carries loss. The last turn of a sample is shown as it was written, whatever the template does: the
prompt it answers, then the turn with its thinking.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pipeline.prep.records import Message
from pipeline.prep.template import PROBE, THINKING_BEGINS, THINKING_ENDS, Template, Tools
from pipeline.prep.turns import Call, MaskError, RowError

Span = tuple[int, int]

_THINKING: Final = re.compile(rf"\s*{THINKING_BEGINS}(.*?){THINKING_ENDS}", re.DOTALL)
_NOT_THOUGHT: Final = re.compile(rf"\s*{THINKING_BEGINS}\s*{THINKING_ENDS}")


@dataclass(frozen=True)
class Rendered:
    """A conversation's text, the spans of it that carry loss, and how many assistant turns have none."""

    text: str
    spans: tuple[Span, ...]
    unmasked_turns: int = 0


def of_assistant(messages: Sequence[Message], tools: Tools, template: Template) -> Rendered:
    """What the target wrote: its turns, their end tokens, their thinking where it is shown. Raises RowError."""
    ends = template.ends
    found = _by_markers(messages, tools, template, ends) if template.tokenizer.marked else None
    found = found or _by_headers(messages, tools, template, ends) or _by_prefixes(messages, tools, template, ends)
    if not found.spans:
        raise MaskError("no loss: the chat template shows no assistant turn as it was written")
    return found


def of_all_but_system(messages: Sequence[Message], tools: Tools, template: Template) -> Rendered:
    """Everything but the system turns. Raises RowError."""
    text = template.render(messages, tools)
    spans: list[Span] = []
    at = 0
    for index, message in enumerate(messages):
        after = text if index == len(messages) - 1 else template.render(messages[: index + 1], tools)
        if not text.startswith(after):
            raise RowError("the chat template changes earlier turns")
        start = at
        if index == 0 and message.role != "system":
            # A template may put a system turn of its own before the first one: it ends before that turn's text, so
            # the loss begins with the text. A probe in its place says where that is: the text may be in a tool too.
            probed = template.render([replace(message, content=PROBE)], tools)
            start = probed.find(PROBE)
            if start < 0 or after[:start] != probed[:start] or _after_content(after, start, message.content) is None:
                raise RowError("the chat template leaves out the first turn")
        if message.role != "system":
            spans.append((start, len(after)))
        at = len(after)
    return Rendered(text, tuple(spans))


def _by_markers(messages: Sequence[Message], tools: Tools, template: Template, ends: Sequence[str]) -> Rendered | None:
    text, marked = template.marked(messages, tools)
    written = [message for message in messages if message.role == "assistant"]
    if len(marked) != len(written):
        return None  # markers that are not one a turn say nothing about which turn they are of
    spans: list[Span] = []
    for (start, end), message in zip(marked, written, strict=True):
        following = next((token for token in ends if text.startswith(token, end)), "")
        has_end = any(text[start:end].rstrip().endswith(token) for token in ends)
        stop = end if has_end or not following else end + len(following)
        span = (start, start + _length(text[start:stop], ends))
        if not _is_turn(text[slice(*span)], message, ends):
            return None
        spans.append(span)
    if _thought(written[-1]) and THINKING_ENDS not in text[slice(*spans[-1])]:
        return None  # the last turn's thinking is left out
    return Rendered(text, tuple(spans))


def _by_headers(messages: Sequence[Message], tools: Tools, template: Template, ends: Sequence[str]) -> Rendered | None:
    """None where the template has no header of its own before every assistant turn, or no token after it."""
    *history, last = messages
    before = template.render(history, tools)
    prompt = template.render(history, tools, generation_prompt=True)
    if not prompt.startswith(before):
        return None
    # Some templates open the thinking for the model, with a tag that turns in the history lack.
    header, opens, rest = prompt[len(before) :].partition(THINKING_BEGINS)
    opened = opens + rest
    whole = template.render(messages, tools)
    at = len(before) if whole.startswith(before + header) else whole.rfind(header)
    if not header.strip() or at < 0:
        return None
    turn = whole[at + len(header) :]
    end = next((token for token in ends if turn.rstrip().endswith(token)), None)
    if end is None:
        return None
    if THINKING_ENDS not in opened:
        turn = _with_thinking(turn, last, opened)
    text = before + header + turn
    starts = [found.end() for found in re.finditer(re.escape(header), text)]
    written = [message for message in messages if message.role == "assistant"]
    if len(starts) != len(written):
        return None  # a text has a header in it
    spans: list[Span] = []
    replies = [after.content.strip() for one, after in itertools.pairwise(messages) if one.role == "assistant"]
    for start, stop, message, reply in zip(starts, [*starts[1:], len(text)], written, [*replies, ""], strict=True):
        span = _written(text[start:stop], message, end, opened, reply)
        if span is not None:
            spans.append((start + span[0], start + span[1]))
    return Rendered(text, tuple(spans), len(written) - len(spans))


def _with_thinking(turn: str, message: Message, opened: str) -> str:
    """A turn's text with the thinking that was written before its answer, where the template leaves that out."""
    if not message.reasoning and THINKING_ENDS in message.content and _after_content(turn, 0, message.content) is None:
        at = _after_content(turn, 0, _answer(message))
        if at is None:
            return turn
        said = message.content.strip()
        return (said if said.startswith(THINKING_BEGINS) else opened + said) + turn[at:]
    if message.reasoning.strip() and (empty := _NOT_THOUGHT.match(turn)):
        return THINKING_BEGINS + message.reasoning + THINKING_ENDS + turn[empty.end() :]
    return turn


def _written(turn: str, message: Message, end: str, opened: str, reply: str) -> Span | None:
    """What the target wrote of a turn's text after its header; None where that is not what the message says.

    ``turn`` may go on with the turns of others, the first of which says ``reply``.
    """
    # The prompt had opened the thinking, so the tag is none of the target's.
    begin = len(opened) if opened and turn.startswith(opened) and not _NOT_THOUGHT.match(turn) else 0
    at = _after_content(turn, 0, message.content)
    if at is None or not message.content.strip():
        thinking = _THINKING.match(turn)
        at = thinking.end() if thinking else 0
        if thinking and not thinking.group(1).strip():
            begin = at  # an empty pair stands for thinking that is not shown
            if not message.content[:1].isspace():
                begin += len(turn[at:]) - len(turn[at:].lstrip())
        elif thinking and thinking.group(1).strip() != _thought(message):
            return None
        at = _after_content(turn, at, _answer(message))
    if at is None:
        return None
    if message.calls:
        stop = turn.find(end, at)  # after it come the tools' turns, which may quote the call
        if stop < 0:
            return None
        said = turn[:stop]
        for call in message.calls:
            at = None if at is None else _after_call(said, at, call)
        if at is None or (reply and reply in said[at:]):
            return None  # a turn that calls may have another end token: the first that is found is then a tool's
        return begin, stop + len(end)
    closed = re.compile(rf"\s*{re.escape(end)}").match(turn, at)
    return (begin, closed.end()) if closed else None


def _by_prefixes(messages: Sequence[Message], tools: Tools, template: Template, ends: Sequence[str]) -> Rendered:
    text = template.render(messages, tools)
    spans: list[Span] = []
    unmasked = 0
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        after = text if index == len(messages) - 1 else template.render(messages[: index + 1], tools)
        if not text.startswith(after):
            unmasked += 1  # the turn is shown differently once others follow, and nothing says where it is
            continue
        before = _common(template.render(messages[:index], tools, generation_prompt=True), after)
        span = (len(before), len(before) + _length(after[len(before) :], ends))
        if not _is_turn(text[slice(*span)], message, ends):
            unmasked += 1
            continue
        spans.append(span)
    return Rendered(text, tuple(spans), unmasked)


def _is_turn(text: str, message: Message, ends: Sequence[str]) -> bool:
    """Whether a span holds an assistant turn and nothing else but its end token and, before it, its thinking."""
    body = text.strip()
    for token in ends:
        if body.endswith(token) and not message.content.rstrip().endswith(token):
            if not message.calls:
                body = body.removesuffix(token).rstrip()
            break
    thinking, ended, rest = body.rpartition(THINKING_ENDS) if _thought(message) else ("", "", body)
    if ended and thinking.strip().removeprefix(THINKING_BEGINS).strip() not in ("", _thought(message)):
        return False
    said = rest.strip() if ended else body
    if not message.calls:
        return said in (_answer(message).strip(), message.content.strip())
    at = _after_content(said, 0, _answer(message))
    for call in message.calls:
        at = None if at is None else _after_call(said, at, call)
    return at is not None


def _after_content(text: str, at: int, content: str) -> int | None:
    """The end of a turn's content, where the text goes on with it; white space around it may be the template's."""
    said = content.strip()
    start = at + len(text[at:]) - len(text[at:].lstrip()) if said else at
    return start + len(said) if text.startswith(said, start) else None


def _after_call(text: str, at: int, call: Call) -> int | None:
    """The end of a tool call, where the text goes on with one: its name or id, and its arguments in any JSON."""
    named = max(text.find(call.name, at), text.find(call.id, at) if call.id else -1)
    if named < 0:
        return None
    written = text.find(call.arguments, at)
    if written >= 0:
        return written + len(call.arguments)
    try:
        values = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    for separators in ((", ", ": "), (",", ":")):
        written = text.find(one := json.dumps(values, ensure_ascii=False, separators=separators), at)
        if written >= 0:
            return written + len(one)
    for leaf in _leaves(values):  # a form of the template's own
        found = text.find(leaf, at)
        if found < 0:
            return None
        at = found + len(leaf)
    return max(at, named)


def _leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value if isinstance(value, str) else json.dumps(value)]


def _answer(message: Message) -> str:
    """A turn's text without thinking that is written before it."""
    return message.content if message.reasoning else message.content.rpartition(THINKING_ENDS)[2]


def _thought(message: Message) -> str:
    """A turn's thinking, wherever the row has it."""
    thought = message.reasoning or message.content.rpartition(THINKING_ENDS)[0]
    return thought.strip().removeprefix(THINKING_BEGINS).strip()


def _length(text: str, ends: Sequence[str]) -> int:
    """How much of a turn's text the target wrote: all up to its end token; white space after that is the template's."""
    body = text.rstrip()
    return len(body) if any(body.endswith(token) for token in ends) else len(text)


def _common(left: str, right: str) -> str:
    """The longest text that both begin with."""
    if right.startswith(left):
        return left
    length = next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    return left[:length]
