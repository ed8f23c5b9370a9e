"""The key/value cache: what attention has already computed, so that a new token costs one token of work."""

import torch
from torch import Tensor

from gptcli.config.model_config import ModelConfig
from gptcli.model.mask import causal_mask, ragged_mask


class KVCache:
    """Keys and values of all layers for several sequences, allocated once for `capacity` positions each.

    `GPTModel.forward` appends to it and advances `lengths`; `truncate` forgets tokens. Sequences may differ
    in length and may come and go: those in use are the first `len(lengths)` rows of `data`.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        *,
        n_heads: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate room for `capacity` tokens of each sequence, at most `context_length`.

        A process that holds a shard of the model has fewer heads than the config: `n_heads`.
        """
        self.capacity = min(capacity, config.context_length)
        self.lengths = [0] * batch_size
        shape = (config.n_layers, 2, batch_size, n_heads or config.n_heads, self.capacity, config.head_dim)
        # Several sequences read to the end of the longest: what the mask hides still takes part, and 0 times
        # a NaN in fresh memory would be NaN.
        allocate = torch.empty if batch_size == 1 else torch.zeros
        self.data = allocate(shape, dtype=dtype, device=device)  # [L, 2, B, H, capacity, D]
        self._positions = torch.empty(0)

    @property
    def length(self) -> int:
        """Tokens held of the longest sequence."""
        return max(self.lengths, default=0)

    def place(self, T: int) -> tuple[Tensor, Tensor | None]:
        """Return the positions of the next T tokens, and the mask of what they may attend to.

        The shapes are [T] and [T, S] where all sequences are equally long, else [B, T] and [B, 1, T, S].
        Called once per forward pass, before the first layer appends.
        """
        device = self.data.device
        start = self.length
        if all(length == start for length in self.lengths):
            self._positions = torch.arange(start, start + T, device=device)  # [T]
            return self._positions, causal_mask(T, start + T, device)
        starts = torch.tensor(self.lengths, device=device)[:, None]  # [B, 1]
        self._positions = starts + torch.arange(T, device=device)  # [B, T]
        return self._positions, ragged_mask(self._positions, start + T)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T new keys and values [B, H, T, D] of a layer; return all S of them, [B, H, S, D] each."""
        B, S = len(self.lengths), self.length + keys.shape[2]
        assert self.capacity >= S, f"cache of {self.capacity} positions cannot hold {S}"
        stored = self.data[layer, :, :B]  # [2, B, H, capacity, D]
        if self._positions.ndim == 1:
            stored[0, :, :, self.length : S] = keys
            stored[1, :, :, self.length : S] = values
        else:
            rows = torch.arange(B, device=keys.device)[:, None]  # [B, 1]
            stored[0].transpose(1, 2)[rows, self._positions] = keys.transpose(1, 2)  # [B, T, H, D]
            stored[1].transpose(1, 2)[rows, self._positions] = values.transpose(1, 2)
        return stored[0, :, :, :S], stored[1, :, :, :S]  # [B, H, S, D] each

    def advance(self, n_tokens: int) -> None:
        """Count `n_tokens` appended tokens of every sequence as held; once per pass, after its last layer."""
        self.lengths = [length + n_tokens for length in self.lengths]

    def truncate(self, length: int, row: int = 0) -> None:
        """Forget every token of one sequence from position `length` on."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(f"cannot truncate a sequence of {self.lengths[row]} tokens to {length}")
        self.lengths[row] = length

    def view(self, first: int, batch_size: int) -> "KVCache":
        """Return a cache over the same memory, of the sequences from row `first` on, which it takes as empty.

        It may reach past the rows in use. Its `lengths` are its own: write them back to add the sequences.
        """
        view = object.__new__(KVCache)
        view.capacity, view.lengths = self.capacity, [0] * batch_size
        view.data, view._positions = self.data[:, :, first : first + batch_size], self._positions
        return view

    def copy_from(self, other: "KVCache") -> None:
        """Take over all sequences of a cache that has no more rows and no longer sequences than fit here."""
        self.lengths = list(other.lengths)
        rows, S = len(self.lengths), self.length
        self.data[:, :, :rows, :, :S] = other.data[:, :, :rows, :, :S]

    def clear(self) -> None:
        """Remove every sequence."""
        self.lengths = []

    def remove(self, row: int) -> None:
        """Remove one sequence; the last one in use moves to its row."""
        length = self.lengths.pop()
        last = len(self.lengths)
        if row < last:
            self.data[:, :, row] = self.data[:, :, last]
            self.lengths[row] = length
        self.data[:, :, last].zero_()  # it may hold NaN
