"""A dense model's forward pass by the native kernels: token ids in, logits out."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from gptcli.engine.native import library
from gptcli.engine.native.arrays import Array, are_neighbors, matrix, norm, pointer, vector
from gptcli.engine.native.quantize import quantize_head
from gptcli.system.threads import default_threads


class Sizes(Protocol):
    """The sizes that shape a model; a config has these attributes."""

    vocab_size: int
    context_length: int
    emb_dim: int
    n_heads: int
    n_layers: int
    ffn_dim: int
    activation: str
    swish_beta: float
    norm_eps: float
    norm_unbiased: bool


class NativeCache:
    """Keys and values of one sequence: data [L, 2, H, capacity, D], the first `length` positions filled."""

    def __init__(self, n_layers: int, n_heads: int, capacity: int, head_dim: int) -> None:
        """Allocate room for `capacity` tokens; float32."""
        self.data = np.empty((n_layers, 2, n_heads, capacity, head_dim), np.float32)
        self.capacity = capacity
        self.lengths = [0]  # of the one sequence; empty where there is none
        self.scratch = np.empty(0, np.float32)  # of the passes that fill it; two sequences share none

    @property
    def length(self) -> int:
        """Return the number of tokens held."""
        return self.lengths[0] if self.lengths else 0

    def advance(self, n_tokens: int) -> None:
        """Count `n_tokens` more as held."""
        self.lengths = [self.length + n_tokens]

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self.lengths = [length]

    def copy_from(self, other: "NativeCache") -> None:
        """Take over the sequence of a cache that has no more tokens than fit here."""
        self.lengths = list(other.lengths)
        self.data[:, :, :, : self.length] = other.data[:, :, :, : self.length]

    def clear(self) -> None:
        """Remove the sequence."""
        self.lengths = []

    def remove(self, row: int) -> None:
        """Remove the sequence, which is in row 0."""
        assert row == 0
        self.lengths = []


class NativeModel:
    """Compute logits from a model's parameters, which are read where they lie."""

    def __init__(
        self,
        sizes: Sizes,
        parameters: Mapping[str, Array],
        n_threads: int | None = None,
        near_tie_tolerance: float = 0.0,
    ) -> None:
        """Take the tutorial's parameters by name; float32, float16, bfloat16 as uint16, or int8 with scales.

        A head that is not there is the token embedding (tied). With an int8 head, logits that are this close
        to the largest, relative to the largest magnitude, are exact as well. Raises ValueError for arrays
        that do not fit, and KernelsUnavailableError.
        """
        self._near_tie = 2 * near_tie_tolerance  # the bound may put the largest too high, too
        self._library = library.load_library()
        self._sizes, self._parameters = sizes, parameters
        self._kept: list[Array] = []
        self._max_tokens: int = self._library.gptcli_max_tokens()
        self._layers = (library.Layer * sizes.n_layers)(*map(self._layer, range(sizes.n_layers)))
        self._model = self._describe(n_threads or default_threads())

    def _describe(self, n_threads: int) -> library.Model:
        s, C, V = self._sizes, self._sizes.emb_dim, self._sizes.vocab_size
        if C % s.n_heads:
            raise ValueError(f"n_heads {s.n_heads} does not divide emb_dim {C}")
        head = "out_head" if "out_head.weight" in self._parameters else "tok_emb"
        return library.Model(
            n_layers=s.n_layers,
            n_heads=s.n_heads,
            emb_dim=C,
            ffn_dim=s.ffn_dim,
            vocab_size=V,
            layers=self._layers,
            tok_emb=self._embedding("tok_emb", V),
            pos_emb=self._embedding("pos_emb", s.context_length),
            final_norm=self._norm("final_norm"),
            head=self._matrix(head, V, C),
            near_tie=self._near_tie,
            norm_eps=s.norm_eps,
            norm_unbiased=s.norm_unbiased,
            n_threads=min(max(n_threads, 1), 256),
        )

    def _layer(self, index: int) -> library.Layer:
        s, block = self._sizes, f"trf_blocks.{index}"
        C, F = s.emb_dim, s.ffn_dim
        beta = self._parameters.get(f"{block}.ff.layers.1.beta")
        qkv = self._qkv(f"{block}.att.W_")
        return library.Layer(
            self._norm(f"{block}.norm1"),
            self._norm(f"{block}.norm2"),
            tuple(qkv),
            self._matrix(f"{block}.att.out_proj", C, C),
            self._matrix(f"{block}.ff.layers.0", F, C),
            self._matrix(f"{block}.ff.layers.2", C, F),
            len(qkv),
            library.ACTIVATIONS.index(s.activation),
            s.swish_beta if beta is None else float(beta),
        )

    def _matrix(self, name: str, n_outputs: int, n_inputs: int) -> library.Matrix:
        weight = self._parameters[f"{name}.weight"]
        bias, scale = self._vector(f"{name}.bias", n_outputs), self._vector(f"{name}.scale", n_outputs)
        self._kept.append(weight)
        return matrix(weight, (n_outputs, n_inputs), f"{name}.weight", bias, scale)

    def _qkv(self, prefix: str) -> list[library.Matrix]:
        """Describe query, key and value, as one matrix if they are neighbors in columns of a file's one."""
        C, names = self._sizes.emb_dim, [f"{prefix}{name}" for name in ("query", "key", "value")]
        parts = [self._matrix(name, C, C) for name in names]
        if not are_neighbors(parts) or len({part.bias is None for part in parts}) > 1:
            return parts
        if parts[0].bias is not None:
            biases = [self._vector(f"{name}.bias", C) for name in names]
            self._kept.append(np.concatenate([bias for bias in biases if bias is not None]))
            parts[0].bias = pointer(self._kept[-1])
        parts[0].n_outputs = 3 * C
        return parts[:1]

    def _embedding(self, name: str, n_rows: int) -> library.Matrix:
        table = self._matrix(name, n_rows, self._sizes.emb_dim)
        if table.by_columns or table.dtype == library.DTYPES["int8"]:
            raise ValueError(f"{name}.weight must be floats that lie by rows")
        return table

    def _norm(self, name: str) -> library.Norm:
        C = self._sizes.emb_dim
        scale, shift = self._vector(f"{name}.scale", C), self._vector(f"{name}.shift", C)
        if scale is None or shift is None:
            raise ValueError(f"{name} has no scale or no shift")
        return norm(scale, shift)

    def _vector(self, name: str, size: int) -> Array | None:
        if name not in self._parameters:
            return None
        self._kept.append(vector(self._parameters[name], size, name))
        return self._kept[-1]

    def build_int8_head(self) -> None:
        """Add an int8 copy of the head, once, for passes that need the largest logit alone."""
        head = self._model.head
        if self._model.error_bound:
            return
        if head.dtype == library.DTYPES["int8"] or head.by_columns or head.bias:
            return  # nothing to gain, or nothing that the bound covers
        name = "out_head.weight" if "out_head.weight" in self._parameters else "tok_emb.weight"
        rows, scale, bound = quantize_head(self._parameters[name])
        self._kept += [rows, scale, bound]
        self._model.error_bound = pointer(bound)
        self._model.int8_head = matrix(rows, (len(rows), self._sizes.emb_dim), "int8 head", scale=scale)

    @property
    def n_threads(self) -> int:
        """Return the number of threads that a pass uses."""
        return int(self._model.n_threads)

    def new_cache(self, rows: int, capacity: int) -> NativeCache:
        """Return an empty cache for one row of up to `capacity` tokens, at most `context_length`."""
        if rows != 1:
            raise ValueError(f"the native engine decodes 1 row at a time, not {rows}")
        s = self._sizes
        return NativeCache(s.n_layers, s.n_heads, min(capacity, s.context_length), s.emb_dim // s.n_heads)

    def forward(
        self, ids: Sequence[int], cache: NativeCache, *, n_logits: int = 1, argmax_only: bool = False
    ) -> Array:  # [n_logits, V]
        """Append ids to a cache and return the float32 logits of the last `n_logits` of them.

        With `argmax_only` and an int8 head, only the largest logit of a row, and any near it, are exact.
        """
        V, T = self._sizes.vocab_size, len(ids)
        tokens = np.array(ids, np.int64)
        self._check(tokens, cache, n_logits)
        logits = np.empty((n_logits, V), np.float32)
        for first in range(0, T, self._max_tokens):
            end = min(first + self._max_tokens, T)
            row = max(first - (T - n_logits), 0)
            n_rows = max(end - max(first, T - n_logits), 0)
            self._run(tokens[first:end], cache, logits[row : row + n_rows], argmax_only)
            cache.advance(end - first)
        return logits

    def _check(self, tokens: Array, cache: NativeCache, n_logits: int) -> None:
        T, s, data = len(tokens), self._sizes, cache.data
        shape = (s.n_layers, 2, s.n_heads, cache.capacity, s.emb_dim // s.n_heads)
        if tokens.ndim != 1 or T == 0 or not 0 <= n_logits <= T:
            raise ValueError(f"{n_logits} logits of {T} tokens")
        if tokens.min() < 0 or tokens.max() >= s.vocab_size:
            raise ValueError(f"token ids {tokens.min()} to {tokens.max()} are not all below {s.vocab_size}")
        if cache.length + T > min(cache.capacity, s.context_length):
            raise ValueError(f"a cache of {cache.capacity} tokens holds {cache.length}, {T} more do not fit")
        if data.shape != shape or data.dtype != np.float32 or not data.flags.c_contiguous:
            raise ValueError(f"the cache has {data.dtype} {list(data.shape)}, expected float32 {list(shape)}")

    def _run(self, tokens: Array, cache: NativeCache, logits: Array, argmax_only: bool) -> None:
        """Run a pass to its end, in calls that are short enough for Ctrl-C."""
        T, model = len(tokens), ctypes.byref(self._model)
        n_floats: int = self._library.gptcli_scratch_floats(model, T, cache.length + T)
        if len(cache.scratch) < n_floats:
            cache.scratch = np.empty(n_floats, np.float32)
        step = library.Pass(
            tokens.ctypes.data,
            T,
            cache.length,
            len(logits),
            argmax_only,
            cache.data.ctypes.data,
            cache.capacity,
            logits.ctypes.data,
            cache.scratch.ctypes.data,
            0,
        )
        while step.next_step <= library.STEPS_PER_LAYER * self._sizes.n_layers:
            self._library.gptcli_forward(model, ctypes.byref(step))
