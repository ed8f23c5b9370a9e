"""Attention masks, true where a new token may attend to a position."""

import torch
from torch import Tensor


def causal_mask(T: int, S: int, device: torch.device) -> Tensor | None:
    """Return [T, S], true where the last T of S positions may look: at themselves and at earlier ones.

    None for a single new token, which may look everywhere, and for T = S, where SDPA makes the mask itself,
    sooner. (Its `is_causal` aligns the first query with the first key: wrong for T new tokens after a longer
    cache.)
    """
    if T in (1, S):
        return None
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def ragged_mask(positions: Tensor, S: int) -> Tensor:
    """Return [B, 1, T, S], true where a token at `positions` [B, T] may look: up to itself in its row."""
    return torch.arange(S, device=positions.device) <= positions[:, None, :, None]
