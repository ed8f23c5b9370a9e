"""A key/value cache with its length in a tensor, so that a recorded step can be replayed at any position."""

import torch
from torch import Tensor

from gptcli.model.cache import KVCache


class StaticCache(KVCache):
    """A view of another cache's memory; attention always reads its first `capacity` positions.

    Positions from `start` [1] on are masked, so shapes never change. The host's `lengths` stay 0.
    """

    def __init__(self, cache: KVCache, capacity: int, start: Tensor) -> None:
        """View the memory of `cache`, of which `capacity` positions are read."""
        self.data, self.capacity, self.lengths = cache.data, capacity, [0] * len(cache.lengths)
        self._start, self._positions = start, start

    def place(self, T: int) -> tuple[Tensor, Tensor]:
        """Return the positions of the next T tokens, [T], and the mask of what they see, [T, capacity]."""
        device = self.data.device
        self._positions = self._start + torch.arange(T, device=device)  # [T]
        return self._positions, torch.arange(self.capacity, device=device) <= self._positions[:, None]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T new keys and values [B, H, T, D] of a layer, and return `capacity` of each."""
        stored = self.data[layer]  # [2, B, H, all positions, D]
        stored[0].index_copy_(2, self._positions, keys)
        stored[1].index_copy_(2, self._positions, values)
        return stored[0, :, :, : self.capacity], stored[1, :, :, : self.capacity]

    def advance(self, n_tokens: int) -> None:
        """Do nothing: `start` belongs to the caller."""
