"""A prompt's many tokens at once: PyTorch's products, with attention by the kernels between them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptcli.engine import attention
from gptcli.engine.arrays import Array
from gptcli.engine.onednn import OneDnnProjection
from gptcli.engine.tile import LANES, TOKENS
from gptcli.model.gpt import GPTModel

# Products are as fast with half as many, but then all keys are turned twice: 252 ms for a prompt of 512 and
# GPT-2 small, 259 by 256, 290 by 128.
PREFILL_TOKENS = 512


class Prefill:
    """Takes tokens into a cache; half the time of attention that a mask hides is not spent."""

    def __init__(self, model: GPTModel, n_threads: int) -> None:
        """For a model in float32, whose linears may be int8; its scratch memory is that of a layer."""
        config = model.config
        self._model, self._n_threads = model, n_threads
        width = -(-config.context_length // LANES) * LANES
        self._turned = np.empty((config.n_heads, config.head_dim, width), np.float32)
        self._room = np.empty((n_threads, TOKENS * width), np.float32)

    def take_in(self, x: Tensor, cache: Array, start: int) -> Tensor:  # [T, C]
        """Embedded tokens behind `start` others → the last one's output of the last block, [1, C].

        `cache` [L, 2, H, capacity, D] takes in their keys and values; it has room for them.
        """
        blocks: Any = self._model.trf_blocks
        for layer, block in enumerate(blocks):
            qkv = _project(block.att, block.norm1(x))  # [T, 3C]
            end = start + qkv.shape[0]
            attention.keep(qkv.numpy(), cache[layer], start, self._turned, self._n_threads)
            if layer == len(blocks) - 1:  # of the others it wants keys and values alone
                x, qkv = x[-1:], qkv[-1:]
            mixed = torch.empty_like(x)
            before = end - x.shape[0]
            attention.attend_many(
                qkv.numpy(), cache[layer], before, self._turned, mixed.numpy(), self._room, self._n_threads
            )
            x = x + block.att.out_proj(mixed)  # [T, C]
            x = x + block.ff(block.norm2(x))  # [T, C]
        return x


def _project(att: Any, x: Tensor) -> Tensor:  # [T, C]
    """Query, key and value side by side: [T, C] → [T, 3C]."""
    if isinstance(att.project, OneDnnProjection):
        return att.project.whole(x)
    return torch.cat(att.project(x), dim=-1)
