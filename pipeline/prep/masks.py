"""Token ids and the loss mask of a sample: 1 on what the target wrote, 0 elsewhere.

The target writes the text of an assistant turn and its end token; the turn's header is part of the prompt. The spans
come from the template's generation markers where it has them, else from rendering the conversation up to before and up
to after each assistant turn. The rendered text is tokenized span by span: the server tokenizes a prompt by itself too,
so the tokens at the seams are the ones it sees. What is masked in is proved by comparing its text with the turn's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.prep.records import Message
from pipeline.prep.shapes import RowError
from pipeline.tokens import RenderError, Tokenizer

THINKING_ENDS: Final = "</think>"

Span = tuple[int, int]


@dataclass(frozen=True)
class Sample:
    """A tokenized conversation. ``unmasked_turns``: assistant turns the template changes later; no loss."""

    input_ids: list[int]
    loss_mask: list[int]
    unmasked_turns: int = 0


@dataclass(frozen=True)
class Rendered:
    """A conversation's text, the spans of it that carry loss, and the assistant turns among them."""

    text: str
    spans: tuple[Span, ...]
    unmasked_turns: int = 0


def prompt_text(messages: Sequence[Message], tokenizer: Tokenizer) -> str:
    """The text of a prompt, up to where the target begins to write. Raises RowError."""
    text = _render(tokenizer, messages, generation_prompt=True)
    if messages[-1].content.strip() not in text:
        raise RowError("the chat template leaves out the last turn")
    return text


def rendered(
    messages: Sequence[Message], tokenizer: Tokenizer, turns: Literal["assistant", "all-but-system"]
) -> Rendered:
    """Render a sample and find what carries loss. Raises RowError."""
    if turns == "all-but-system":
        return _all_but_system(messages, tokenizer)
    ends = tokenizer.special_tokens()
    result = _by_markers(messages, tokenizer, ends) if tokenizer.marked else _by_prefixes(messages, tokenizer, ends)
    if not result.spans:
        raise RowError("no loss: the chat template shows no assistant turn as it was written")
    return result


def tokenize(batch: Sequence[Rendered], tokenizer: Tokenizer) -> list[Sample | RowError]:
    """Ids and masks of rendered samples, in one call of the tokenizer; a RowError in the place of an unusable one."""
    pieces = [_pieces(sample) for sample in batch]
    ids = iter(tokenizer.encode([text for sample in pieces for text, _ in sample]))
    return [
        _join(sample, [(next(ids), loss) for _, loss in parts], tokenizer)
        for sample, parts in zip(batch, pieces, strict=True)
    ]


def _join(sample: Rendered, parts: Sequence[tuple[list[int], int]], tokenizer: Tokenizer) -> Sample | RowError:
    input_ids = [token for ids, _ in parts for token in ids]
    loss_mask = [loss for ids, loss in parts for _ in ids]
    if not any(loss_mask):
        return RowError("no loss: the mask is all 0")
    if all(loss_mask):
        return RowError("loss on everything: the mask is all 1")
    written = "".join(sample.text[start:end] for start, end in sample.spans)
    masked_in = "".join(tokenizer.decode(ids) for ids, loss in parts if loss)
    if masked_in != written:
        return RowError("the text does not survive the tokenizer")
    return Sample(input_ids, loss_mask, sample.unmasked_turns)


def _pieces(sample: Rendered) -> list[tuple[str, int]]:
    """The text in pieces with their loss, none of them empty."""
    pieces = []
    at = 0
    for start, end in sample.spans:
        pieces += [(sample.text[at:start], 0), (sample.text[start:end], 1)]
        at = end
    pieces.append((sample.text[at:], 0))
    return [(text, loss) for text, loss in pieces if text]


def _by_prefixes(messages: Sequence[Message], tokenizer: Tokenizer, ends: Sequence[str]) -> Rendered:
    text = _render(tokenizer, messages)
    spans: list[Span] = []
    unmasked = 0
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        after = text if index == len(messages) - 1 else _render(tokenizer, messages[: index + 1])
        if not text.startswith(after):
            unmasked += 1  # the template renders this turn differently once others follow: nobody ever wrote that
            continue
        # Some templates open the answer for the model, with a tag that the whole conversation lacks.
        before = _common(_render(tokenizer, messages[:index], generation_prompt=True), after)
        span = (len(before), len(before) + _written(after[len(before) :], ends))
        if not _is_turn(text[slice(*span)], message, ends):
            unmasked += 1
            continue
        spans.append(span)
    return Rendered(text, tuple(spans), unmasked)


def _by_markers(messages: Sequence[Message], tokenizer: Tokenizer, ends: Sequence[str]) -> Rendered:
    try:
        text, marked = tokenizer.render_marked([message.for_template() for message in messages])
    except RenderError as error:
        raise RowError(f"the chat template refuses it: {error}") from error
    written = [message for message in messages if message.role == "assistant"]
    if len(marked) != len(written):
        raise RowError("the chat template's generation markers are not one a turn")
    spans: list[Span] = []
    for (start, end), message in zip(marked, written, strict=True):
        following = next((token for token in ends if text.startswith(token, end)), "")
        has_end = any(text[start:end].rstrip().endswith(token) for token in ends)
        stop = end if has_end or not following else end + len(following)
        span = (start, start + _written(text[start:stop], ends))
        if _is_turn(text[slice(*span)], message, ends):
            spans.append(span)
    return Rendered(text, tuple(spans), len(written) - len(spans))


def _all_but_system(messages: Sequence[Message], tokenizer: Tokenizer) -> Rendered:
    text = _render(tokenizer, messages)
    spans: list[Span] = []
    at = 0
    for index, message in enumerate(messages):
        after = text if index == len(messages) - 1 else _render(tokenizer, messages[: index + 1])
        if not text.startswith(after):
            raise RowError("the chat template changes earlier turns")
        start = at
        if index == 0 and message.role != "system":
            # A template may put a system turn of its own before the first one: it ends before that turn's text, so
            # the loss begins with the text.
            start = after.find(message.content.strip())
            if start < 0:
                raise RowError("the chat template leaves out the first turn")
        if message.role != "system":
            spans.append((start, len(after)))
        at = len(after)
    return Rendered(text, tuple(spans))


def _written(text: str, ends: Sequence[str]) -> int:
    """How much of a turn's text the target wrote: all up to its end token; white space after that is the template's."""
    body = text.rstrip()
    return len(body) if any(body.endswith(token) for token in ends) else len(text)


def _is_turn(text: str, message: Message, ends: Sequence[str]) -> bool:
    """Whether a span holds an assistant turn's text and nothing else but its end token and, before it, its thinking."""
    body = text.strip()
    for token in ends:
        if body.endswith(token) and not message.content.rstrip().endswith(token):
            body = body.removesuffix(token).rstrip()
            break
    said = message.content.strip()
    if body == said:
        return True
    answer = said.rpartition(THINKING_ENDS)[2].strip()
    thought = message.reasoning or THINKING_ENDS in said
    return bool(thought) and body.endswith(answer) and body.removesuffix(answer).rstrip().endswith(THINKING_ENDS)


def _common(left: str, right: str) -> str:
    """The longest text that both begin with."""
    if right.startswith(left):
        return left
    length = next(
        (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    return left[:length]


def _render(tokenizer: Tokenizer, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
    try:
        return tokenizer.render([message.for_template() for message in messages], generation_prompt=generation_prompt)
    except RenderError as error:
        raise RowError(f"the chat template refuses it: {error}") from error
