"""The GPT: token and position embeddings, pre-norm transformer blocks, final norm, output head.

The shapes in comments, here and in every other file, use one legend:

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
    """Attention, then feed-forward; each after a norm (pre-norm) and with a shortcut around it.

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
        """Apply the block to x [B, T, C]; with `last_only` return the last token alone, [B, 1, C]."""
        y = self.att(self.norm1(x), mask, cache, layer, last_only=last_only)  # [B, T or 1, C]
        x = x[:, -y.shape[1] :] + self.drop_shortcut(y)  # [B, T or 1, C]
        x = x + self.drop_shortcut(self.ff(self.norm2(x)))  # [B, T, C]
        return x  # noqa: RET504 - so that the two lines look alike


class GPTModel(nn.Module):
    """A GPT-2 of the shape that a config gives. A tied head shares the weight of the token embedding."""

    def __init__(self, config: ModelConfig) -> None:
        # The order of creation is the tutorial's: with its seed the modules draw its published weights.
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
        """Make a tied head share the embedding's weight; needed again after a move, which makes two of it."""
        if self.config.tie_embeddings:
            self.out_head.weight = self.tok_emb.weight

    def forward(self, idx: Tensor, cache: KVCache | None = None) -> Tensor:  # [B, T, V]
        """Return the logits for token ids [B, T], which continue what the cache holds, if there is one.

        T plus the cached length must not exceed `context_length`, where the learned positions end.
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

    def greedy_logits(self, hidden: Tensor) -> Tensor:  # [..., V]
        """Return the logits that greedy decoding needs, for `hidden` [..., C]: here all of them.

        A subclass may return others for tokens that are far from the largest. The largest logit, those close
        to it, and their probabilities are always those of `out_head`.
        """
        logits: Tensor = self.out_head(hidden)  # [..., V]
        return logits

    def hidden(
        self, idx: Tensor, cache: KVCache | None = None, *, last_only: bool = False
    ) -> Tensor:  # [B, T, C]
        """Return the input of the head for token ids [B, T]: the last block's output after the final norm.

        With `last_only` the result is the last token's, [B, 1, C], and the last block computes only the keys
        and values of the others.
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
            )  # [B, T, C], or [B, 1, C] after the last block
        if cache is not None:
            cache.advance(T)
        normed: Tensor = self.final_norm(x)  # [B, T, C]
        return normed


def generate_text_simple(model: GPTModel, idx: Tensor, max_new_tokens: int, context_size: int) -> Tensor:
    """Append `max_new_tokens` greedy tokens to idx [B, T] and return [B, T + max_new_tokens].

    This is the tutorial's loop: without a cache, it computes the whole text again for every token.
    """
    for _ in range(max_new_tokens):
        with torch.no_grad():
            logits = model(idx[:, -context_size:])  # [B, T, V]
        idx_next = logits[:, -1].argmax(dim=-1, keepdim=True)  # [B, 1]
        idx = torch.cat((idx, idx_next), dim=1)  # [B, T + 1]
    return idx
