"""Choose the next token from a row of logits: greedy, or temperature with top-k and top-p, reproducible by seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

HEADS = (64, 2048)
"""Tokens looked at first for top-p: sorting the whole vocabulary costs more than a layer of a small model."""


@dataclass(frozen=True)
class Sampling:
    """SGLang's defaults: what is left out means temperature 1, no truncation."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1  # -1: all

    def problem(self) -> str:
        """Why these values make no sense, in words; empty if they do."""
        if not 0.0 <= self.temperature < float("inf"):
            return f"temperature must be non-negative, got {self.temperature}."
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p must be in (0, 1], got {self.top_p}."
        if self.top_k < 1 and self.top_k != -1:
            return f"top_k must be -1 (disable) or at least 1, got {self.top_k}."
        return ""


def choose(logits: torch.Tensor, sampling: Sampling, draw: random.Random) -> int:
    """The next token id from logits [vocabulary]. ``draw`` gives one number a token: same seed, same answer."""
    if sampling.temperature == 0.0 or sampling.top_k == 1:
        return int(torch.argmax(logits))
    scaled = logits.float() / sampling.temperature
    size = scaled.shape[0]
    probabilities = torch.softmax(scaled, dim=-1)
    keep = size if sampling.top_k == -1 else min(sampling.top_k, size)
    if keep == size and sampling.top_p == 1.0:
        return _invert(probabilities.cumsum(0), draw.random())
    mass, ids = _head(probabilities, keep, sampling.top_p)
    before = mass.cumsum(0) - mass
    # The token that reaches top_p is kept; the first one always is.
    count = max(1, int((before < sampling.top_p).sum()))
    return int(ids[_invert(mass[:count].cumsum(0), draw.random())])


def _head(probabilities: torch.Tensor, keep: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest tokens, at most ``keep``, as many as surely hold ``top_p`` of the mass of those ``keep``."""
    if keep == probabilities.shape[0]:
        for count in HEADS:
            mass, ids = torch.topk(probabilities, min(count, keep))
            if float(mass.sum()) >= top_p:
                return mass, ids
    mass, ids = torch.topk(probabilities, keep)
    return mass / mass.sum(), ids


def _invert(cumulative: torch.Tensor, drawn: float) -> int:
    found = int(torch.searchsorted(cumulative, drawn * float(cumulative[-1]), right=True))
    return min(found, cumulative.shape[0] - 1)
