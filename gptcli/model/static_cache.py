"""A key/value cache whose length is a tensor, so that a recorded step can be replayed wherever it is."""

import torch
from torch import Tensor

from gptcli.model.cache import KVCache


class StaticCache(KVCache):
    """A view of another cache's memory, of which attention always reads the first `capacity` positions.

    What stands at `start` [1] and behind is masked, so shapes never change. The host's `length` stays 0.
    """

    def __init__(self, over: KVCache, capacity: int, start: Tensor) -> None:
        """Over the memory of `over`, of whose positions `capacity` are read."""
        self.data, self.capacity, self.length = over.data, capacity, 0
        self._start, self._places = start, start

    def place(self, T: int) -> tuple[Tensor, Tensor]:
        """Where the next T tokens stand, [T], and what they may look at, [T, capacity]."""
        device = self.data.device
        self._places = self._start + torch.arange(T, device=device)  # [T]
        return self._places, torch.arange(self.capacity, device=device) <= self._places[:, None]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T new keys and values [B, H, T, D] of a layer; `capacity` of each come back."""
        stored = self.data[layer]  # [2, B, H, all positions, D]
        stored[0].index_copy_(2, self._places, keys)
        stored[1].index_copy_(2, self._places, values)
        return stored[0, :, :, : self.capacity], stored[1, :, :, : self.capacity]

    def advance(self, n_tokens: int) -> None:
        """Nothing: `start` is whoever's who has made it."""
