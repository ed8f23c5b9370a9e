"""Masked multi-head attention, with or without a cache."""

import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.model.cache import KVCache


class MultiHeadAttention(nn.Module):
    """softmax(Q·Kᵀ/√D)·V in H parallel heads, then one output projection.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        C = config.emb_dim
        self.head_dim, self.drop_rate, self.score_scale = (
            config.head_dim,
            config.drop_rate,
            config.score_scale,
        )
        self.W_query = nn.Linear(C, C, bias=config.qkv_bias)
        self.W_key = nn.Linear(C, C, bias=config.qkv_bias)
        self.W_value = nn.Linear(C, C, bias=config.qkv_bias)
        self.out_proj = nn.Linear(C, C, bias=config.attn_out_bias)

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: KVCache | None, layer: int, *, last_only: bool = False
    ) -> Tensor:  # [B, T, C]
        """Attend from the T tokens of x [B, T, C]; with a cache, also to its S - T tokens of this `layer`.

        With `last_only` the result is the last token's alone, [B, 1, C].
        """
        q = self.split_heads(self.W_query(x))  # [B, H, T, D]
        k, v = self.split_heads(self.W_key(x)), self.split_heads(self.W_value(x))  # [B, H, T, D] each
        if cache is not None:
            k, v = cache.append(layer, k, v)  # [B, H, S, D]
        if last_only:
            q, mask = q[:, :, -1:], None  # [B, H, 1, D]; the last token sees all
        dropout, is_causal = self.drop_rate if self.training else 0.0, mask is None and q.shape[2] > 1
        scale = self.score_scale(layer)  # 1/√D, but for some of Stanford's models
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale=scale)  # [B, H, T, D]
        y = y.transpose(1, 2).flatten(2)  # [B, T, C]
        projected: Tensor = self.out_proj(y)  # [B, T, C]
        return projected

    def split_heads(self, x: Tensor) -> Tensor:  # [B, H, T, D]
        """Split the last axis of x [B, T, C] into heads."""
        B, T, _ = x.shape
        return x.view(B, T, -1, self.head_dim).transpose(1, 2)  # [B, H, T, D]
