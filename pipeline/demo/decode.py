"""Decode many sequences at once with a causal language model: they join and leave between steps.

Sequences that decode fill the slots 0 to n-1 without gaps, so that a step works on a view of the cache; the one whose
prompt is being read sits in the slot after them.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch

from pipeline.demo.cache import SlotCache
from pipeline.demo.sampling import Sampling, choose

CHUNK: Final = 256
"""Prompt tokens read in one step, so that a long prompt does not hold up the others."""


@dataclass(frozen=True)
class Finish:
    """Why a sequence ended: ``matched`` is the end id for stop; ``message`` is for abort."""

    kind: Literal["stop", "length", "abort"]
    matched: int | None = None
    message: str = ""


@dataclass
class Sequence:
    """A prompt and its answer so far. ``output`` includes the end id."""

    rid: str
    prompt: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    output: list[int] = field(default_factory=list)
    finish: Finish | None = None
    cached: int = 0  # positions in the cache

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)  # noqa: S311 - reproducible, no secret

    def take(self, token: int) -> None:
        """Append a token and see whether the answer ends with it."""
        self.output.append(token)
        if token in self.stop_ids:
            self.finish = Finish("stop", matched=token)
        elif len(self.output) >= self.max_new_tokens:
            self.finish = Finish("length")


class Decoder:
    """A model, its cache of ``slots`` × ``capacity`` positions, and the sequences in it. One thread only."""

    def __init__(self, model: Any, slots: int, capacity: int) -> None:
        self.model = model.eval()
        self.slots = slots
        self.capacity = capacity
        self.cache = SlotCache(model.config, slots, capacity, model.dtype)
        # transformers renamed the argument.
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self.decoding: list[Sequence] = []
        self.prefilling: Sequence | None = None

    @property
    def running(self) -> int:
        return len(self.decoding) + (self.prefilling is not None)

    @property
    def tokens(self) -> int:
        """Positions of the cache in use."""
        return sum(one.cached for one in self.decoding) + (self.prefilling.cached if self.prefilling else 0)

    def can_admit(self) -> bool:
        return self.prefilling is None and len(self.decoding) < self.slots

    def admit(self, sequence: Sequence) -> None:
        """Take a sequence in. The caller has checked that prompt and answer fit the capacity."""
        assert self.can_admit() and sequence.prompt
        self.prefilling = sequence

    def step(self) -> list[Sequence]:
        """One chunk of a prompt, where one is being read, and one token for every sequence that decodes.

        Returns the sequences that ended.
        """
        if self.prefilling is not None:
            self._prefill(self.prefilling)
        live = [one for one in self.decoding if one.finish is None]
        if len(live) == len(self.decoding) and live:
            rows = slice(0, len(live))
            logits = self._forward(rows, [[one.output[-1]] for one in live], [one.cached for one in live])
            for one, row in zip(live, logits, strict=True):
                one.cached += 1
                one.take(choose(row[-1], one.sampling, one.draw))
        return self._leave()

    def drop(self, rids: Row[str], message: str) -> list[Sequence]:
        """End the sequences with these ids before their time; returns them."""
        ended = []
        for one in [*self.decoding, *([self.prefilling] if self.prefilling else [])]:
            if one.rid in rids:
                one.finish = Finish("abort", message=message)
                ended.append(one)
        self._leave()
        return ended

    def _prefill(self, sequence: Sequence) -> None:
        start = sequence.cached
        chunk = sequence.prompt[start : start + CHUNK]
        slot = len(self.decoding)
        logits = self._forward(slice(slot, slot + 1), [chunk], [start])
        sequence.cached += len(chunk)
        if sequence.cached == len(sequence.prompt):
            sequence.take(choose(logits[0, -1], sequence.sampling, sequence.draw))
            self.decoding.append(sequence)
            self.prefilling = None

    @torch.inference_mode()
    def _forward(self, rows: slice, tokens: list[list[int]], starts: list[int]) -> torch.Tensor:
        """Logits [rows, 1, vocabulary] after tokens [rows, width] that begin at ``starts``."""
        ids = torch.tensor(tokens)
        positions = torch.tensor(starts)[:, None] + torch.arange(ids.shape[1])[None, :]
        self.cache.place.set(rows, positions)
        output = self.model(
            input_ids=ids,
            attention_mask=self.cache.place.mask(),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self.cache},
        )
        logits: torch.Tensor = output.logits
        return logits

    def _leave(self) -> list[Sequence]:
        """Take the ended sequences out and close the gaps they leave."""
        ended: list[Sequence] = []
        slot = 0
        while slot < len(self.decoding):
            one = self.decoding[slot]
            if one.finish is None:
                slot += 1
                continue
            ended.append(one)
            last = len(self.decoding) - 1
            if slot != last:
                self.decoding[slot] = self.decoding[last]
                self.cache.move(last, slot, self.decoding[slot].cached)
            self.decoding.pop()
            if self.prefilling is not None:
                self.cache.move(last + 1, last, self.prefilling.cached)
        if self.prefilling is not None and self.prefilling.finish is not None:
            ended.append(self.prefilling)
            self.prefilling = None
        return ended
