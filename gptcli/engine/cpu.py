"""The decode engine on a CPU: GPTModel's step for one to a few tokens, through the kernels."""

from collections.abc import Sequence

import numba
import numpy as np
import torch
from numba.np.numpy_support import from_dtype
from torch import Tensor, nn

from gptcli.decode.near_ties import FLOAT32_TOLERANCE
from gptcli.engine import kernels, products
from gptcli.engine.arrays import NONE, Array, Linear, block_of, linear_of, norm_of, stored_in
from gptcli.engine.prefill import PREFILL_TOKENS, Prefill
from gptcli.engine.quick_head import build_quick_head
from gptcli.engine.tile import provide
from gptcli.model.cache import KVCache
from gptcli.model.feedforward import FeedForward
from gptcli.model.gpt import GPTModel

MAX_TOKENS = 16


class CpuEngine:
    """Logits of the next tokens, from a model's own weights, which are read where they lie."""

    def __init__(self, model: GPTModel, n_threads: int) -> None:
        """Look at the weights; raises `ValueError` for a model that the kernels cannot run."""
        config = model.config
        if (reason := unsupported(model)) is not None:
            raise ValueError(reason)
        for stored in (np.float32, np.int8, stored_in(model.new_cache(1, 1)).dtype):
            provide(from_dtype(np.dtype(stored)))
        self._model = model
        self.n_threads = min(n_threads, numba.get_num_threads())
        self._blocks = [block_of(block) for block in model.trf_blocks]
        self._final_norm = norm_of(model.final_norm)
        self._head = linear_of(model.out_head)
        self._quick_head: tuple[Linear, Array] | None = None
        self._prefill: Prefill | None = None
        self._activation = products.ACTIVATION_CODES[config.activation]
        self._norm = (config.norm_eps, int(config.norm_unbiased))
        C, F, V = config.emb_dim, config.ffn_dim, config.vocab_size
        assert F is not None
        room = MAX_TOKENS * max(3 * C, F, V // self.n_threads + 1)
        f32 = np.float32
        self._rooms = (
            np.empty((self.n_threads, room), f32),
            np.empty((self.n_threads, MAX_TOKENS * config.context_length), f32),
        )
        self._logits = np.empty((MAX_TOKENS, V), f32)
        self._buffers = [np.empty((MAX_TOKENS, width), f32) for width in (C, C, 3 * C, F)]

    @property
    def max_tokens(self) -> int:
        """As many ids at once, no more."""
        return MAX_TOKENS

    def describe(self) -> str:
        """The kernels, their number of threads and what runs them."""
        return f"Numba kernels, {self.n_threads} threads by {numba.threading_layer()}"

    def warm_up(self) -> None:
        """Compile the kernels of a block, or load them, and run them once; the head has its own."""
        cache, x = self._model.new_cache(1, 1), np.ones((1, self._model.config.emb_dim), np.float32)
        self._run_blocks(x, cache)

    def warm_up_head(self) -> None:
        """Likewise for exact logits, on arrays of its own: the engine may be decoding in another thread."""
        x, logits, buffers = self._for_a_head()
        kernels.head(x, self._final_norm, self._head, logits, buffers, self.n_threads, *self._norm)

    def _room_for(self, T: int) -> tuple[Array, ...]:
        return (*(buffer[:T] for buffer in self._buffers), *self._rooms)

    def build_quick_head(self) -> None:
        """Have the head in int8 too, for steps that want no more than the largest logit."""
        head = self._model.out_head
        if isinstance(head, nn.Linear):  # else it is int8 already
            quick = build_quick_head(head)
            small = Linear((quick.weight,), (NONE,), (quick.scale,))
            x, logits, buffers = self._for_a_head()
            self._run_quick_head(x, small, quick.radius, logits, buffers)
            self._quick_head = (small, quick.radius)

    def _for_a_head(self) -> tuple[Array, Array, tuple[Array, ...]]:
        """What a head reads and writes with one token, and its buffers."""
        config = self._model.config
        x, logits = np.ones((1, config.emb_dim), np.float32), np.empty((1, config.vocab_size), np.float32)
        return x, logits, tuple(np.empty_like(buffer) for buffer in self._room_for(1))

    @property
    def int8_head(self) -> tuple[Tensor, Tensor] | None:
        """The head's rows in int8 and their scales, if they were built."""
        if self._quick_head is None:
            return None
        small, _ = self._quick_head
        return torch.from_numpy(small.weights[0]), torch.from_numpy(small.scales[0])

    def prepare_prefill(self) -> None:
        """Have the kernels for many tokens too, if the model is in float32; others may decode meanwhile."""
        if self._model.tok_emb.weight.dtype == torch.float32:
            prefill, cache = Prefill(self._model, self.n_threads), self._model.new_cache(1, 2)
            with torch.inference_mode():
                prefill.take_in(self._embed([0, 0], 0), stored_in(cache), 0)
            self._prefill = prefill

    def _run_quick_head(
        self, x: Array, small: Linear, radius: Array, logits: Array, buffers: tuple[Array, ...]
    ) -> None:
        W, margin = self._head.weights[0], 2 * FLOAT32_TOLERANCE
        kernels.quick_head(
            x, self._final_norm, small, radius, W, margin, logits, buffers, self.n_threads, *self._norm
        )

    def logits(
        self, ids: Sequence[int], cache: KVCache, *, largest_only: bool = False, last: int | None = None
    ) -> Tensor:
        """Up to `MAX_TOKENS` ids behind what the cache holds → float32 logits [T, V]; it takes them in.

        They are valid until the next call, and of the `last` alone, if that is given.
        With `largest_only` those that cannot be the largest, nor near it, may be off by some hundredths.
        """
        numba.set_num_threads(self.n_threads)  # of this thread
        x = self._embed(ids, cache.length).numpy()
        self._run_blocks(x, cache)
        cache.advance(len(ids))
        return self._head_of(x if last is None else x[-last:], largest_only=largest_only)

    def _run_blocks(self, x: Array, cache: KVCache) -> None:
        """All blocks on x [T, C], in place."""
        buffers, settings = self._room_for(len(x)), (self.n_threads, self._activation, *self._norm)
        for layer, weights in enumerate(self._blocks):
            kernels.block(x, *weights, stored_in(cache)[layer], cache.length, buffers, *settings)

    @property
    def can_prefill(self) -> bool:
        """Whether `prefill` is prepared."""
        return self._prefill is not None

    def prefill(self, ids: Sequence[int], cache: KVCache, *, largest_only: bool = False) -> Tensor:
        """Any number of ids that the cache has room for → the last one's logits, [1, V], as `logits`."""
        assert self._prefill is not None
        numba.set_num_threads(self.n_threads)
        for first in range(0, len(ids), PREFILL_TOKENS):
            part = ids[first : first + PREFILL_TOKENS]
            x = self._prefill.take_in(self._embed(part, cache.length), stored_in(cache), cache.length)
            cache.advance(len(part))
        return self._head_of(x.numpy(), largest_only=largest_only)

    def _head_of(self, x: Array, *, largest_only: bool) -> Tensor:
        """What comes out of the last block, [T, C] → logits [T, V]."""
        T = len(x)
        logits, buffers = self._logits[:T], self._room_for(T)
        if largest_only and self._quick_head is not None:
            self._run_quick_head(x, *self._quick_head, logits, buffers)
        else:
            kernels.head(x, self._final_norm, self._head, logits, buffers, self.n_threads, *self._norm)
        return torch.from_numpy(logits)

    def _embed(self, ids: Sequence[int], start: int) -> Tensor:
        positions = torch.arange(start, start + len(ids))
        x: Tensor = self._model.tok_emb(torch.tensor(ids)).float() + self._model.pos_emb(positions).float()
        return x  # [T, C]


def unsupported(model: GPTModel) -> str | None:
    """Why the kernels cannot run a model, if they cannot."""
    config = model.config
    if not isinstance(model.trf_blocks[0].ff, FeedForward):
        return f"feed-forward {config.feed_forward} has no kernel"
    if config.activation not in products.ACTIVATION_CODES:
        return f"activation {config.activation} has no kernel"
    return None
