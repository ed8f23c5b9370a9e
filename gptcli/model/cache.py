"""The key/value cache: what attention has already computed, so that a new token costs one token of work."""

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from gptcli.config.model_config import ModelConfig
from gptcli.model.mask import causal_mask

if TYPE_CHECKING:
    from gptcli.model.gpt import GPTModel


class KVCache:
    """Keys and values of all layers for one batch, allocated once for `capacity` positions.

    `GPTModel.forward` appends to it and moves `length` on; `truncate` takes tokens back. Positions in the
    model follow `length`, so a cache never holds more than `context_length` of them.
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
        """Room for `capacity` tokens, at most `context_length`, of `batch_size` rows and all or `n_heads`."""
        self.capacity = min(capacity, config.context_length)
        self.length = 0
        shape = (config.n_layers, 2, batch_size, n_heads or config.n_heads, self.capacity, config.head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)  # [L, 2, B, H, capacity, D]

    @classmethod
    def of(cls, model: "GPTModel", batch_size: int, capacity: int) -> Self:
        """One for a model: for the heads that it has here, in its dtype and on its device."""
        att: Any = model.trf_blocks[0].att
        weight = model.tok_emb.weight
        n_heads = att.W_key.weight.shape[0] // att.head_dim
        return cls(
            model.config, batch_size, capacity, n_heads=n_heads, dtype=weight.dtype, device=weight.device
        )

    def place(self, T: int) -> tuple[Tensor, Tensor | None]:
        """Where the next T tokens stand, [T], and what they may look at, [T, S]; once, before they come."""
        S = self.length + T
        positions = torch.arange(self.length, S, device=self.data.device)
        return positions, causal_mask(T, S, self.data.device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T new keys and values [B, H, T, D] of a layer; all S of them come back, [B, H, S, D] each."""
        S = self.length + keys.shape[2]
        assert self.capacity >= S, f"cache of {self.capacity} positions cannot hold {S}"
        stored = self.data[layer]  # [2, B, H, capacity, D]
        stored[0, :, :, self.length : S] = keys
        stored[1, :, :, self.length : S] = values
        return stored[0, :, :, :S], stored[1, :, :, :S]  # [B, H, S, D] each

    def advance(self, n_tokens: int) -> None:
        """Count `n_tokens` appended positions as held; once per forward pass, after its last layer."""
        self.length += n_tokens

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.length = length
