"""Keys and values of many sequences in fixed slots, each at its own length, behind transformers' cache interface."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of ``SlotCache``: keys and values [slots, key/value heads, capacity, head size]."""

    def __init__(self, place: Place, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        super().__init__()
        self.place = place
        self.keys = untouched_zeros(shape, dtype)
        self.values = untouched_zeros(shape, dtype)
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: allocated already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states [rows, heads, width, head size] at the current place; return all states of its rows."""
        place = self.place
        assert self.keys is not None and self.values is not None
        self.keys[place.row_index, :, place.positions] = key_states.transpose(1, 2)
        self.values[place.row_index, :, place.positions] = value_states.transpose(1, 2)
        return self.keys[place.rows, :, : place.length], self.values[place.rows, :, : place.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - the interface's name
        return self.place.length, 0

    def get_seq_length(self) -> int:
        return 0  # rows differ; every caller gives positions and mask itself

    def get_max_length(self) -> int:
        return -1


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages take memory only when they are written; torch.zeros writes them all at once.

    Zeros rather than anything: a stray NaN would survive a mask.
    """
    flat = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(flat).view(dtype).view(shape)


class Place:
    """Where the next forward pass writes: a range of slots, and positions [rows, width] within them."""

    def __init__(self) -> None:
        self.set(slice(0, 1), torch.zeros(1, 1, dtype=torch.long))

    def set(self, rows: slice, positions: torch.Tensor) -> None:
        self.rows = rows
        self.positions = positions
        self.row_index = torch.arange(rows.start, rows.stop)[:, None]
        self.length = int(positions.max()) + 1

    def mask(self) -> torch.Tensor:
        """[rows, 1, width, length], True where a query may look: at its own position and before."""
        return torch.arange(self.length)[None, None, None, :] <= self.positions[:, None, :, None]


class SlotCache(Cache):  # type: ignore[misc]
    """The cache a model is called with. ``place`` says where the call writes."""

    def __init__(self, config: Any, slots: int, capacity: int, dtype: torch.dtype) -> None:
        self.place = Place()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, heads, capacity, size)
        super().__init__(layers=[SlotLayer(self.place, shape, dtype) for _ in range(config.num_hidden_layers)])

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` positions of slot ``source`` to slot ``target``."""
        for layer in self.layers:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]
