"""The native kernels as an engine: every kind of model on a CPU, one sequence or many, without torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gptcli.config.cost import kv_bytes_per_token
from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Array, ForwardRequest
from gptcli.decode.near_ties import FLOAT32_TOLERANCE
from gptcli.engine.native import library
from gptcli.engine.native.cache import NativeCache
from gptcli.engine.native.draft import Int8DraftModel
from gptcli.engine.native.model import NativeModel
from gptcli.errors import count
from gptcli.system.memory import available_bytes, require_memory

# The int8 copy of the head takes about as long to make as it saves in this many greedy steps.
MIN_TOKENS_FOR_INT8_HEAD = 64


class NativeEngine:
    """Logits by the native kernels, in float32; near ties in float64."""

    max_tokens = 16
    near_tie_tolerance = FLOAT32_TOLERANCE

    def __init__(
        self, config: ModelConfig, parameters: dict[str, Array], n_threads: int | None = None
    ) -> None:
        """Take the parameters where they lie.

        Raises `ValueError` for arrays that do not fit, `KernelsUnavailableError` without compiled kernels.
        """
        self.config = config
        self._model = NativeModel(config, parameters, n_threads, FLOAT32_TOLERANCE)
        self.draft_model = Int8DraftModel(
            config, parameters, self._model.n_threads, lambda: self.step_seconds
        )
        self.step_seconds = float("inf")  # of one token, at best; infinite before any was timed

    @property
    def n_threads(self) -> int:
        """Return the number of threads that a pass uses."""
        return self._model.n_threads

    def new_cache(self, n_sequences: int, capacity: int) -> NativeCache:
        """Return a cache of empty sequences; raises `ResourceError` if several do not fit into memory."""
        capacity = min(capacity, self.config.context_length)
        if n_sequences > 1:
            n_bytes = kv_bytes_per_token(self.config) * capacity * n_sequences
            what = f"the key/value cache of {n_sequences} sequences of {capacity} tokens"
            require_memory(n_bytes, available_bytes(), what, "a smaller --batch-size or --max-new-tokens")
        return self._model.new_cache(n_sequences, capacity)

    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [N, V]."""
        is_argmax, ids = request.exactness == "argmax", request.ids
        cache = self._model.new_cache(0, max(map(len, ids))) if request.cache is None else request.cache
        assert isinstance(cache, NativeCache)
        if is_argmax and len(ids) == 1 and request.tokens_left > MIN_TOKENS_FOR_INT8_HEAD:
            self._model.build_int8_head()
        start = time.perf_counter()
        logits = self._model.forward(
            ids, cache, first_row=request.first_row, n_logits=request.n_logits, argmax_only=is_argmax
        )
        if len(ids) == len(ids[0]) == 1:
            self.step_seconds = min(self.step_seconds, time.perf_counter() - start)
        return logits

    def exact_logits(self, ids: Sequence[int], cache: Any = None, row: int = 0) -> Array:
        """Return the logits [V] after `ids` in float64 arithmetic on the stored weights.

        A cached sequence keeps its float64 keys and values, so that each token is computed once.
        """
        exact = self._model.new_cache(1, len(ids), np.float64) if cache is None else cache.exact(row)
        exact.truncate(min(exact.length, len(ids) - 1))
        logits: Array = self._model.forward([ids[exact.length :]], exact)[0]
        return logits

    def describe(self) -> str:
        """Return what computes."""
        return f"native kernels ({library.active_variant()}), {count(self.n_threads, 'thread')}"
