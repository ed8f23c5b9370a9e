"""A model's forward pass by the native kernels: token ids in, logits out."""

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from gptcli.config.model_config import ModelConfig
from gptcli.engine.native import library
from gptcli.engine.native.arrays import Array, matrix, pointer
from gptcli.engine.native.cache import NativeCache, Row
from gptcli.engine.native.describe import Describer
from gptcli.engine.native.quantize import quantize_head
from gptcli.system.threads import default_threads


class NativeModel:
    """Compute logits from a model's parameters, which are read where they lie."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Array],
        n_threads: int | None = None,
        near_tie_tolerance: float = 0.0,
    ) -> None:
        """Take the tutorial's parameters by name; float32, float16, bfloat16 as uint16, or int8 with scales.

        A head that is not there is the token embedding (tied). With an int8 head, logits that are this close
        to the largest, relative to their scale, are exact as well. Raises ValueError for arrays that do not
        fit, and KernelsUnavailableError.
        """
        self._library = library.load_library()
        self._config, self._parameters = config, parameters
        self._max_tokens: int = self._library.gptcli_max_tokens()
        self._describer = Describer(config, parameters)
        self._model = self._describer.model(n_threads or default_threads())
        self._model.near_tie = 2 * near_tie_tolerance  # the bound may put the largest too high, too

    @property
    def n_threads(self) -> int:
        """Return the number of threads that a pass uses."""
        return int(self._model.n_threads)

    def build_int8_head(self) -> None:
        """Add an int8 copy of the head, once, for passes that need the largest logit alone."""
        head = self._model.head
        if self._model.error_bound:
            return
        if head.dtype == library.DTYPES["int8"] or head.by_columns or head.bias:
            return  # nothing to gain, or nothing that the bound covers
        name = "out_head.weight" if "out_head.weight" in self._parameters else "tok_emb.weight"
        rows, scale, bound = quantize_head(self._parameters[name])
        self._describer.kept += [rows, scale, bound]
        self._model.error_bound = pointer(bound)
        self._model.int8_head = matrix(rows, rows.shape, "int8 head", scale=scale)

    def new_cache(self, n_sequences: int, capacity: int, dtype: type = np.float32) -> NativeCache:
        """Return a cache of empty sequences of up to `capacity` tokens, at most `context_length`."""
        cache = NativeCache(self._config, capacity, dtype)
        for _ in range(n_sequences):
            cache.add()
        return cache

    def forward(
        self,
        ids: Sequence[Sequence[int]],
        cache: NativeCache,
        *,
        first_row: int = 0,
        n_logits: Sequence[int] | None = None,
        argmax_only: bool = False,
    ) -> Array:  # [N, V]
        """Append ids to sequences of a cache and return the logits of the last `n_logits` of each (else one).

        Sequences past the cache's last one are added. The logits, one sequence after another, have the dtype
        of the cache, float32 or float64, and so have all sums. With `argmax_only` and an int8 head, only the
        largest logit of a row, and any near it, are exact.
        """
        n_logits = [1] * len(ids) if n_logits is None else n_logits
        rows = cache.rows[first_row : first_row + len(ids)]
        rows += [cache.add() for _ in range(len(ids) - len(rows))]
        self._check(ids, rows, n_logits)
        tokens = np.fromiter((token for one in ids for token in one), np.int64)
        if tokens.min() < 0 or tokens.max() >= self._config.vocab_size:
            raise ValueError(
                f"token ids {tokens.min()} to {tokens.max()} are not all below {self._config.vocab_size}"
            )
        logits: Array = np.empty((sum(n_logits), self._config.vocab_size), cache.dtype)
        token = done = 0
        for pieces in _passes(ids, rows, n_logits, self._max_tokens):
            n_tokens, n_rows = sum(p.n_tokens for p in pieces), sum(p.n_logits for p in pieces)
            self._run(
                tokens[token : token + n_tokens], pieces, cache, logits[done : done + n_rows], argmax_only
            )
            token, done = token + n_tokens, done + n_rows
        for one, row in zip(ids, rows, strict=True):
            row.length += len(one)
        return logits

    def _check(self, ids: Sequence[Sequence[int]], rows: Sequence[Row], n_logits: Sequence[int]) -> None:
        s = self._config
        for one, row, n in zip(ids, rows, n_logits, strict=True):
            T, capacity = len(one), row.data.shape[3]
            if T == 0 or not 0 <= n <= T:
                raise ValueError(f"{n} logits of {T} tokens")
            if row.length + T > min(capacity, s.context_length):
                raise ValueError(f"a cache of {capacity} tokens holds {row.length}, {T} more do not fit")
            shape = (s.n_layers, 2, s.n_heads, capacity, s.head_dim)
            if row.data.shape != shape or row.data.dtype not in (np.float32, np.float64):
                raise ValueError(f"the cache has {row.data.dtype} {list(row.data.shape)}, expected {shape}")

    def _run(
        self,
        tokens: Array,
        pieces: list[library.Row],
        cache: NativeCache,
        logits: Array,
        argmax_only: bool,
    ) -> None:
        """Run a pass to its end, in calls that are short enough for Ctrl-C."""
        T, model = len(tokens), ctypes.byref(self._model)
        is_float64, longest = cache.dtype == np.float64, max(p.start + p.n_tokens for p in pieces)
        n_bytes: int = self._library.gptcli_scratch_bytes(model, T, longest, is_float64)
        if len(cache.scratch) < n_bytes:
            cache.scratch = np.empty(n_bytes, np.uint8)
        step = library.Pass(
            tokens.ctypes.data,
            (library.Row * len(pieces))(*pieces),
            len(pieces),
            T,
            len(logits),
            longest,
            argmax_only,
            is_float64,
            logits.ctypes.data,
            cache.scratch.ctypes.data,
            0,
        )
        while step.next_step <= library.STEPS_PER_LAYER * self._config.n_layers:
            self._library.gptcli_forward(model, ctypes.byref(step))


def _passes(
    ids: Sequence[Sequence[int]], rows: Sequence[Row], n_logits: Sequence[int], max_tokens: int
) -> list[list[library.Row]]:
    """Cut the tokens of all sequences into passes of at most `max_tokens`; a long sequence takes several."""
    passes, free = list[list[library.Row]](), 0
    for one, row, n in zip(ids, rows, n_logits, strict=True):
        T, first = len(one), 0
        while first < T:
            if free == 0:
                passes.append([])
                free = max_tokens
            end = min(first + free, T)
            n_here = max(end - max(first, T - n), 0)
            capacity = row.data.shape[3]
            passes[-1].append(
                library.Row(row.data.ctypes.data, capacity, row.length + first, end - first, n_here)
            )
            free -= end - first
            first = end
    return passes
