"""Who may look at whom: masks for attention, true where a new token sees a position."""

import torch
from torch import Tensor


def causal_mask(T: int, S: int, device: torch.device) -> Tensor | None:
    """[T, S], true where the last T of S positions may look: at themselves and at what stands before.

    None for a single new token, which may look everywhere, and for all tokens there are, whose mask SDPA
    makes itself, sooner. (Its `is_causal` lines up the first query with the first key: wrong for T new tokens
    behind a longer cache.)
    """
    if T in (1, S):
        return None
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def ragged_mask(positions: Tensor, S: int) -> Tensor:
    """[B, 1, T, S], true where a token at `positions` [B, T] may look: up to itself, in its own row."""
    return torch.arange(S, device=positions.device) <= positions[:, None, :, None]
