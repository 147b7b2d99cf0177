"""Conversations to records: rendered, tokenized in batches, counted."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from pipeline.prep import masks
from pipeline.prep.records import Conversation, held_out
from pipeline.prep.settings import Settings
from pipeline.prep.shapes import RowError
from pipeline.prep.tally import Tally
from pipeline.tokens import Tokenizer

T = TypeVar("T")

TOO_LONG: Final = "too long"
"""A prompt that leaves no room for its answer, or a sample longer than the target's context."""


class Recorder:
    """Makes the records of one dataset. What it cannot use goes to the tally, under its reason."""

    def __init__(self, settings: Settings, tokenizer: Tokenizer, tally: Tally) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._tally = tally
        self.lengths = array("I")  # tokens of each record
        self.heldout = 0
        self.unmasked_turns = 0

    def records(self, batch: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
        """The records of a batch, in its order."""
        return self._prompts(batch) if self._settings.kind == "prompts" else self._samples(batch)

    def _prompts(self, batch: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
        budget = self._settings.max_new_tokens or 0
        texts = self._rendered(batch, lambda each: masks.prompt_text(each.messages, self._tokenizer))
        encoded = self._tokenizer.encode([text for _, text in texts])
        for (conversation, _), ids in zip(texts, encoded, strict=True):
            if not ids:
                self._drop(conversation, "no tokens")
            elif len(ids) > self._settings.context_length - budget:
                self._drop(conversation, TOO_LONG)
            else:
                yield self._keep(
                    conversation,
                    len(ids),
                    {
                        "partition": self._settings.partition,
                        "max_new_tokens": budget,
                        "prompt_ids": ids,
                        "messages": [message.for_template() for message in conversation.messages],
                    },
                )

    def _samples(self, batch: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
        turns = self._settings.train_turns
        texts = self._rendered(batch, lambda each: masks.rendered(each.messages, self._tokenizer, turns))
        encoded = masks.tokenize([text for _, text in texts], self._tokenizer)
        for (conversation, _), sample in zip(texts, encoded, strict=True):
            if isinstance(sample, RowError):
                self._drop(conversation, str(sample))
            elif len(sample.input_ids) > self._settings.context_length:
                self._drop(conversation, TOO_LONG)
            else:
                self.unmasked_turns += sample.unmasked_turns
                parts = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
                yield self._keep(conversation, len(sample.input_ids), parts)

    def _rendered(
        self, batch: Sequence[Conversation], render: Callable[[Conversation], T]
    ) -> list[tuple[Conversation, T]]:
        texts = []
        for conversation in batch:
            try:
                texts.append((conversation, render(conversation)))
            except RowError as error:
                self._drop(conversation, str(error))
        return texts

    def _keep(self, conversation: Conversation, length: int, parts: dict[str, Any]) -> dict[str, Any]:
        heldout = held_out(conversation.group, self._settings.heldout_share)
        self.heldout += heldout
        self.lengths.append(length)
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
