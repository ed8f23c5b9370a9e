"""The GPT: token and position embeddings, pre-norm transformer blocks, final norm, output head.

The shapes at the margin, here and in every other file, use one legend:

    B  batch                 H  attention heads         F  ffn_dim
    T  new tokens            D  width of one head       V  vocabulary
    S  cached + new tokens   C  emb_dim                 L  layers
    E  experts               K  experts per token

Class and attribute names are those of the from-scratch tutorial, so that its state dict loads by name.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.model.attention import MultiHeadAttention
from gptcli.model.cache import KVCache
from gptcli.model.mask import causal_mask
from gptcli.model.moe import build_feed_forward
from gptcli.model.norm import LayerNorm


class TransformerBlock(nn.Module):
    """Attention, then feed-forward; each behind a norm (pre-norm) and beside a shortcut.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.att = MultiHeadAttention(config)
        self.ff = build_feed_forward(config)
        self.norm1 = LayerNorm(config)
        self.norm2 = LayerNorm(config)
        self.drop_shortcut = nn.Dropout(config.drop_rate)

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: KVCache | None, layer: int, *, last_only: bool = False
    ) -> Tensor:  # [B, T, C]
        """[B, T, C] → [B, T, C]; with `last_only` the last token's alone, [B, 1, C]."""
        y = self.att(self.norm1(x), mask, cache, layer, last_only=last_only)  # [B, T or 1, C]
        x = x[:, -y.shape[1] :] + self.drop_shortcut(y)  # [B, T or 1, C]
        x = x + self.drop_shortcut(self.ff(self.norm2(x)))  # [B, T, C]
        return x  # noqa: RET504 - two lines alike


class GPTModel(nn.Module):
    """GPT-2, as the config shapes it. A tied head shares its weight with the token embedding."""

    def __init__(self, config: ModelConfig) -> None:
        # Modules are made in the tutorial's order: with its seed they draw its published weights.
        super().__init__()
        self.config = config
        self.tok_emb = nn.Embedding(config.vocab_size, config.emb_dim)
        self.pos_emb = nn.Embedding(config.context_length, config.emb_dim)
        self.drop_emb = nn.Dropout(config.drop_rate)
        self.trf_blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.n_layers))
        self.final_norm = LayerNorm(config)
        self.out_head = nn.Linear(config.emb_dim, config.vocab_size, bias=False)
        self.tie_head()

    def tie_head(self) -> None:
        """Let a tied head share the embedding's weight (again, after a move that made two of the one)."""
        if self.config.tie_embeddings:
            self.out_head.weight = self.tok_emb.weight

    def forward(self, idx: Tensor, cache: KVCache | None = None) -> Tensor:  # [B, T]
        """Token ids [B, T] → logits [B, T, V]; with a cache the ids go on from what it holds.

        T plus the cached length must not exceed `context_length`: learned positions end there.
        """
        logits: Tensor = self.out_head(self.hidden(idx, cache))  # [B, T, V]
        return logits

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """Return an empty cache for the heads that the model has here, in its dtype and on its device."""
        weight, config = self.tok_emb.weight, self.config
        block: Any = self.trf_blocks[0]
        n_heads = block.att.W_key.weight.shape[0] // config.head_dim  # fewer in a shard of the model
        return KVCache(
            config, batch_size, capacity, n_heads=n_heads, dtype=weight.dtype, device=weight.device
        )

    def greedy_logits(self, hidden: Tensor) -> Tensor:  # [..., C]
        """The head's logits as far as greedy decoding looks at them, [..., C] → [..., V]: here all of them.

        The largest, any near it, and their probabilities are those of `out_head`.
        """
        logits: Tensor = self.out_head(hidden)  # [..., V]
        return logits

    def hidden(
        self, idx: Tensor, cache: KVCache | None = None, *, last_only: bool = False
    ) -> Tensor:  # [B, T]
        """What the head reads: the last block's output behind the final norm, [B, T] → [B, T, C].

        With `last_only` the last token's, [B, 1, C]: of the others the last block computes keys and values.
        """
        T = idx.shape[1]
        start = cache.length if cache is not None else 0
        if start + T > self.config.context_length:
            raise ValueError(f"{start + T} tokens exceed the context length {self.config.context_length}")
        if cache is None:
            positions, mask = torch.arange(T, device=idx.device), causal_mask(T, T, idx.device)
        else:
            positions, mask = cache.place(T)  # [T] or [B, T]; [T, S] or [B, 1, T, S]
        x = self.drop_emb(self.tok_emb(idx) + self.pos_emb(positions))  # [B, T, C]
        for layer, block in enumerate(self.trf_blocks):
            is_last = layer == len(self.trf_blocks) - 1
            x = block(
                x, mask, cache, layer, last_only=last_only and is_last
            )  # [B, T, C]; in the end [B, 1, C]
        if cache is not None:
            cache.advance(T)
        normed: Tensor = self.final_norm(x)  # [B, T, C]
        return normed


def generate_text_simple(model: GPTModel, idx: Tensor, max_new_tokens: int, context_size: int) -> Tensor:
    """The tutorial's greedy loop, all of it again for every token: [B, T] → [B, T + max_new_tokens]."""
    for _ in range(max_new_tokens):
        with torch.no_grad():
            logits = model(idx[:, -context_size:])  # [B, T, V]
        idx_next = logits[:, -1].argmax(dim=-1, keepdim=True)  # [B, 1]
        idx = torch.cat((idx, idx_next), dim=1)  # [B, T + 1]
    return idx
