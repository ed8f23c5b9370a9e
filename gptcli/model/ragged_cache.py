"""A key/value cache whose rows have lengths of their own, so that prompts of unequal length share a batch."""

import torch
from torch import Tensor

from gptcli.config.model_config import ModelConfig
from gptcli.model.cache import KVCache
from gptcli.model.mask import ragged_mask


class RaggedCache(KVCache):
    """Rows that come and go; those in use are the first `len(lengths)`, each with its own positions.

    Nothing is padded: a row's tokens stand at its positions 0, 1, …, and what lies behind is masked. `length`
    is that of the longest.
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
        """Room for `batch_size` rows of up to `capacity` tokens."""
        super().__init__(config, batch_size, capacity, n_heads=n_heads, dtype=dtype, device=device)
        self.data.zero_()  # what is masked still takes part: 0 times the NaN in some memory would be NaN
        self.lengths: list[int] = []
        self._places = torch.empty(0)

    def admit(self, filled: KVCache, lengths: list[int]) -> None:
        """Take in rows behind those in use; row i of `filled` holds `lengths[i]` tokens, then anything."""
        first, T = len(self.lengths), filled.length
        self.data[:, :, first : first + len(lengths), :, :T] = filled.data[:, :, : len(lengths), :, :T]
        self.lengths += lengths
        self.length = max(self.lengths)

    def drop(self, row: int) -> None:
        """Let a row go; the last one in use takes its place."""
        length = self.lengths.pop()
        last = len(self.lengths)
        if row < last:
            self.data[:, :, row] = self.data[:, :, last]
            self.lengths[row] = length
        self.data[:, :, last].zero_()
        self.length = max(self.lengths, default=0)

    def place(self, T: int) -> tuple[Tensor, Tensor]:
        """Where the next T tokens of each row stand, [B, T], and what they may look at, [B, 1, T, S]."""
        device = self.data.device
        starts = torch.tensor(self.lengths, device=device)[:, None]  # [B, 1]
        self._places = starts + torch.arange(T, device=device)  # [B, T]
        return self._places, ragged_mask(self._places, self.length + T)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store each row's T new keys and values [B, H, T, D]; S of all come back, [B, H, S, D] each."""
        B, S = len(self.lengths), self.length + keys.shape[2]
        assert self.capacity >= S, f"cache of {self.capacity} positions cannot hold {S}"
        stored = self.data[layer, :, :B]  # [2, B, H, capacity, D]
        rows = torch.arange(B, device=self.data.device)[:, None]  # [B, 1]
        stored[0].transpose(1, 2)[rows, self._places] = keys.transpose(1, 2)  # [B, T, H, D]
        stored[1].transpose(1, 2)[rows, self._places] = values.transpose(1, 2)
        return stored[0, :, :, :S], stored[1, :, :, :S]  # [B, H, S, D] each

    def advance(self, n_tokens: int) -> None:
        """Count `n_tokens` appended positions of every row as held."""
        self.lengths = [length + n_tokens for length in self.lengths]
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on, in every row."""
        super().truncate(length)
        self.lengths = [min(own, length) for own in self.lengths]
