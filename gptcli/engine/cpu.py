"""The decode engine on a CPU: GPTModel's step for one to a few tokens, through the kernels."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn

from gptcli.decode.rounding import NEAR_TIE
from gptcli.engine import kernels
from gptcli.engine.onednn import neighbours
from gptcli.engine.quick_head import build_quick_head
from gptcli.model.cache import KVCache
from gptcli.model.feedforward import FeedForward
from gptcli.model.gpt import GPTModel
from gptcli.model.norm import LayerNorm
from gptcli.quantize import Int8Linear

Array = np.ndarray[Any, np.dtype[Any]]
_STORED_AS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
MAX_TOKENS = 8


class Linear(NamedTuple):
    """Matrices [O, I] that read the same input, with biases and scales, empty where there are none."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    scales: tuple[Array, ...]


class CpuEngine:
    """Logits of the next tokens, from a model's own weights, which are read where they lie."""

    def __init__(self, model: GPTModel, n_threads: int) -> None:
        """Look at the weights; raises `ValueError` for a model that the kernels cannot run."""
        config = model.config
        if (reason := unsupported(model)) is not None:
            raise ValueError(reason)
        self._model = model
        self.n_threads = min(n_threads, numba.get_num_threads())
        self._blocks = [_block_of(block) for block in model.trf_blocks]
        self._final_norm = _norm(model.final_norm)
        self._head = _linear(model.out_head)
        self._quick_head: tuple[Linear, Array] | None = None
        self._activation = kernels.ACTIVATION_CODES[config.activation]
        self._norm = (config.norm_eps, int(config.norm_unbiased))
        C, F, V = config.emb_dim, config.ffn_dim, config.vocab_size
        assert F is not None
        room = MAX_TOKENS * max(3 * C, F, V // self.n_threads + 1)
        f32 = np.float32
        self._rooms = (
            np.empty((self.n_threads, room), f32),
            np.empty((self.n_threads, config.context_length), f32),
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
        """Compile the kernels, or load them, and run each once.

        The parts first, each kept on disk as soon as it is compiled: a process that ends before the last one
        leaves less to do for the next.
        """
        cache = KVCache.of(self._model, 1, 1)
        normed, mixed, fused, _, room, scores = self._room_for(1)
        norm1, _, qkv, project, _, _ = self._blocks[0]
        kernels.normalize(normed, *norm1, *self._norm, mixed)
        kernels.attend(fused, _stored(cache)[0], 0, mixed, scores, self.n_threads)
        for linear, out in ((qkv, fused), (project, mixed)):
            kernels.run_linear(normed, linear, out, room, self.n_threads)
        with torch.inference_mode():
            self.logits([0], cache)

    def _room_for(self, T: int) -> tuple[Array, ...]:
        return (*(buffer[:T] for buffer in self._buffers), *self._rooms)

    def build_quick_head(self) -> None:
        """Have the head in int8 too, for steps that want no more than the largest logit."""
        head = self._model.out_head
        if isinstance(head, nn.Linear):  # else it is int8 already
            quick = build_quick_head(head)
            small = Linear((quick.weight,), (_NONE,), (quick.scale,))
            # Compiled here and now, on arrays of its own: the engine may be decoding in another thread.
            x, logits = (
                np.ones((1, head.in_features), np.float32),
                np.empty((1, head.out_features), np.float32),
            )
            buffers = tuple(np.empty_like(buffer) for buffer in self._room_for(1))
            self._run_quick_head(x, small, quick.radius, logits, buffers)
            self._quick_head = (small, quick.radius)

    def _run_quick_head(
        self, x: Array, small: Linear, radius: Array, logits: Array, buffers: tuple[Array, ...]
    ) -> None:
        W, margin = self._head.weights[0], 2 * NEAR_TIE
        kernels.quick_head(
            x, self._final_norm, small, radius, W, margin, logits, buffers, self.n_threads, *self._norm
        )

    def logits(self, ids: Sequence[int], cache: KVCache, *, largest_only: bool = False) -> Tensor:
        """Up to `MAX_TOKENS` ids behind what the cache holds → float32 logits [T, V]; it takes them in.

        They are valid until the next call.
        With `largest_only` those that cannot be the largest, nor near it, may be off by some hundredths.
        """
        numba.set_num_threads(self.n_threads)  # of this thread
        T, start = len(ids), cache.length
        x = self._embed(ids, start)
        buffers, stored = self._room_for(T), _stored(cache)
        for layer, weights in enumerate(self._blocks):
            kernels.block(
                x, *weights, stored[layer], start, buffers, self.n_threads, self._activation, *self._norm
            )
        cache.advance(T)
        logits = self._logits[:T]
        if largest_only and self._quick_head is not None:
            self._run_quick_head(x, *self._quick_head, logits, buffers)
        else:
            kernels.head(x, self._final_norm, self._head, logits, buffers, self.n_threads, *self._norm)
        return torch.from_numpy(logits)

    def _embed(self, ids: Sequence[int], start: int) -> Array:
        tokens = torch.tensor(ids)
        positions = torch.arange(start, start + len(ids))
        x = self._model.tok_emb(tokens).float() + self._model.pos_emb(positions).float()  # [T, C]
        embedded: Array = x.numpy()
        return embedded


def unsupported(model: GPTModel) -> str | None:
    """Why the kernels cannot run a model, if they cannot."""
    config = model.config
    if not isinstance(model.trf_blocks[0].ff, FeedForward):
        return f"feed-forward {config.feed_forward} has no kernel"
    if config.activation not in kernels.ACTIVATION_CODES:
        return f"activation {config.activation} has no kernel"
    return None


def _block_of(block: Any) -> tuple[Any, ...]:
    att, ff = block.att, block.ff
    up, down = ff.layers[0], ff.layers[2]
    qkv = _side_by_side([att.W_query, att.W_key, att.W_value])
    return (_norm(block.norm1), _norm(block.norm2), qkv, *map(_linear, (att.out_proj, up, down)))


def _norm(norm: LayerNorm) -> tuple[Array, Array]:
    return _array(norm.scale), _array(norm.shift)


def _linear(linear: nn.Linear | Int8Linear) -> Linear:
    return _side_by_side([linear])


def _side_by_side(linears: Sequence[nn.Linear | Int8Linear]) -> Linear:
    """One input's matrices: by rows as they are, by columns as the one matrix that a file cut into views."""
    weights = [linear.weight.detach() for linear in linears]
    biases = [_NONE if linear.bias is None else _array(linear.bias.float()) for linear in linears]
    if all(weight.is_contiguous() for weight in weights):
        scales = [_array(linear.scale) if isinstance(linear, Int8Linear) else _NONE for linear in linears]
        return Linear(tuple(map(_array, weights)), tuple(biases), tuple(scales))
    whole = neighbours(weights)
    whole = torch.cat(weights) if whole is None else whole
    return Linear((_array(whole),), (np.concatenate(biases),), (_NONE,))


def _array(tensor: Tensor) -> Array:
    """The same memory for NumPy, 16-bit numbers as whole ones."""
    tensor = tensor.detach()
    if tensor.dtype in _STORED_AS:
        tensor = tensor.view(_STORED_AS[tensor.dtype])
    array: Array = tensor.numpy()
    return array


def _stored(cache: KVCache) -> Array:
    """A cache of one row: [L, 2, H, capacity, D]."""
    whole: Array = _array(cache.data)  # [L, 2, 1, H, capacity, D]
    return whole[:, :, 0]


_NONE = np.empty(0, np.float32)
