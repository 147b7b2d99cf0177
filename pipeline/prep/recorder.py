"""Conversations to records: rendered, tokenized in batches, counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.prep import masks
from pipeline.prep.masks import Sample
from pipeline.prep.records import Conversation, held_out
from pipeline.prep.settings import Settings
from pipeline.prep.spans import Rendered
from pipeline.prep.tally import Tally
from pipeline.prep.template import Template
from pipeline.prep.turns import MaskError, RowError
from pipeline.tokens import Tokenizer

BATCH_ROWS: Final = 64  # tokenized in one call
BATCH_CHARACTERS: Final = 2_000_000
TOO_LONG: Final = "too long"
"""A prompt that leaves no room for its answer, or a sample longer than the target's context."""


Parts = Sequence[tuple[list[int], int]]
"""The token ids of pieces of a text, each with its loss."""


@dataclass(frozen=True)
class Piecewise:
    """A rendered conversation: its text in pieces with their loss; ``sample`` where it is no prompt."""

    conversation: Conversation
    pieces: Sequence[tuple[str, int]]
    sample: Rendered | None = None


@dataclass(frozen=True)
class Begun:
    """A batch on its way. ``ids`` waits for the tokens of every piece."""

    rendered: Sequence[Piecewise]
    ids: Callable[[], list[list[int]]]


class Recorder:
    """Makes the records of one dataset. What it cannot use goes to the tally, under its reason."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer, tally: Tally) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._template = Template(tokenizer)
        self._tally = tally
        self.heldout = 0
        self.unmasked_turns = 0
        self.mask_refused = 0  # samples whose loss mask would be wrong
        self.cut = 0  # samples cut at a turn to fit the context

    def begin(self, batch: Sequence[Conversation]) -> Begun:
        """Render a batch and have it tokenized, while the next one is read and rendered where the tokenizer can."""
        prompts = self._settings.kind == "prompts"
        rendered = self._rendered(batch, self._render_prompt if prompts else self._render_sample)
        texts = [text for each in rendered for text, _ in each.pieces]
        return Begun(rendered, self._tokenizer.begin(texts))

    def records(self, begun: Begun) -> Iterator[dict[str, Any]]:
        """The records of a batch, in its order."""
        ids = iter(begun.ids())
        for each in begun.rendered:
            parts = [(next(ids), loss) for _, loss in each.pieces]
            record = self._prompt(each, parts) if each.sample is None else self._sample(each, each.sample, parts)
            if record is not None:
                yield record

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a record's tokens."""
        return self._tokenizer.decode(ids)

    def _prompt(self, each: Piecewise, parts: Parts) -> dict[str, Any] | None:
        budget = self._settings.max_new_tokens or 0
        ids = parts[0][0]
        if not ids:
            self._drop(each.conversation, "no tokens")
            return None
        if len(ids) > self._settings.context_length - budget:
            self._drop(each.conversation, TOO_LONG)
            return None
        return self._keep(
            each.conversation,
            len(ids),
            {
                "partition": self._settings.partition,
                "max_new_tokens": budget,
                "prompt_ids": ids,
                **_said(each.conversation, len(each.conversation.messages)),
            },
        )

    def _sample(self, each: Piecewise, sample: Rendered, parts: Parts) -> dict[str, Any] | None:
        conversation = each.conversation
        usable, turns = masks.join(sample, parts, self._tokenizer), len(conversation.messages)
        if isinstance(usable, Sample) and len(usable.input_ids) > self._settings.context_length:
            usable, turns = self._fitting(conversation)
        if isinstance(usable, RowError):
            self._refuse(conversation, usable)
            return None
        self.unmasked_turns += usable.unmasked_turns
        return self._keep(
            conversation,
            len(usable.input_ids),
            {"input_ids": usable.input_ids, "loss_mask": usable.loss_mask, **_said(conversation, turns)},
        )

    def _render_prompt(self, conversation: Conversation) -> Piecewise:
        text = masks.prompt_text(conversation.messages, self._template, conversation.tools)
        return Piecewise(conversation, [(text, 0)])

    def _render_sample(self, conversation: Conversation) -> Piecewise:
        sample = self._sample_of(conversation, len(conversation.messages))
        return Piecewise(conversation, masks.pieces(sample), sample)

    def _sample_of(self, conversation: Conversation, length: int) -> Rendered:
        turns = self._settings.train_turns
        return masks.rendered(conversation.messages[:length], self._template, turns, conversation.tools)

    def _fitting(self, conversation: Conversation) -> tuple[Sample | RowError, int]:
        """A sample that is too long: its most turns that fit, where the settings say so, and their number."""
        if self._settings.over_context == "drop":
            return RowError(TOO_LONG), 0
        found: Sample | None = None
        ends = [at + 1 for at, message in enumerate(conversation.messages) if message.role == "assistant"][:-1]
        low, high = 0, len(ends)
        while low < high:  # tokens grow with turns
            middle = (low + high) // 2
            try:
                sample = masks.tokenized(self._sample_of(conversation, ends[middle]), self._tokenizer)
            except Exception:  # a template may refuse a conversation that ends here
                sample = RowError(TOO_LONG)
            if isinstance(sample, Sample) and len(sample.input_ids) <= self._settings.context_length:
                found, low = sample, middle + 1
            else:
                high = middle
        self.cut += found is not None
        return (found, ends[low - 1]) if found else (RowError(TOO_LONG), 0)

    def _rendered(self, batch: Sequence[Conversation], render: Callable[[Conversation], Piecewise]) -> list[Piecewise]:
        rendered = []
        for conversation in batch:
            try:
                rendered.append(render(conversation))
            except RowError as error:
                self._refuse(conversation, error)
            except Exception as error:  # one row of any kind must not end the stage: it is counted under its error
                self._drop(conversation, f"undecodable: {type(error).__name__}")
        return rendered

    def _refuse(self, conversation: Conversation, error: RowError) -> None:
        self.mask_refused += isinstance(error, MaskError)
        self._drop(conversation, str(error))

    def _keep(self, conversation: Conversation, length: int, parts: dict[str, Any]) -> dict[str, Any]:
        heldout = held_out(conversation.group, self._settings.heldout_share)
        self.heldout += heldout
        self._tally.keep(length)
        return {
            "dataset": self._settings.dataset,
            "row": conversation.row,
            "hash": conversation.hash,
            "group": conversation.group,
            "heldout": heldout,
            **parts,
        }

    def _drop(self, conversation: Conversation, reason: str) -> None:
        self._tally.drop(reason, conversation.position, conversation.preview())


def _said(conversation: Conversation, turns: int) -> dict[str, Any]:
    """The text of a record: its turns, and the tools they may call."""
    tools = {"tools": list(conversation.tools)} if conversation.tools else {}
    return {"messages": [message.for_template() for message in conversation.messages[:turns]], **tools}


def batch_of(conversations: Iterator[Conversation], wanted: int) -> list[Conversation]:
    """The next conversations to tokenize in one call: so many, or fewer where they are long."""
    batch: list[Conversation] = []
    characters = 0
    for conversation in itertools.islice(conversations, wanted):
        batch.append(conversation)
        characters += sum(len(message.content) for message in conversation.messages)
        if characters > BATCH_CHARACTERS:
            break
    return batch
