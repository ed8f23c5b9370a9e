"""Layer normalization over the embedding width."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig


class LayerNorm(nn.Module):
    """scale · (x - mean) / √(variance + eps) + shift, over the last axis.

    The variance divides by C, as in GPT-2, or by C - 1 with `norm_unbiased`, as in the tutorial's listing.
    Without `norm_bias` there is no shift.
    Source: Ba et al. 2016, "Layer Normalization", section 3.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.unbiased = config.norm_unbiased
        self.scale = nn.Parameter(torch.ones(config.emb_dim))
        self.shift = nn.Parameter(torch.zeros(config.emb_dim)) if config.norm_bias else None

    def forward(self, x: Tensor) -> Tensor:  # [B, T, C]
        """Normalize x [B, T, C] over its last axis."""
        if not self.unbiased:  # the same formula, fused
            return F.layer_norm(x, self.scale.shape, self.scale, self.shift, self.eps)
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=1)  # [B, T, 1] each
        y = self.scale * ((x - mean) * torch.rsqrt(variance + self.eps))  # [B, T, C]
        return y if self.shift is None else y + self.shift
