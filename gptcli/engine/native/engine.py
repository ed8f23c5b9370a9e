"""The native kernels as an engine: one sequence at a time on a CPU, without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Array, ForwardRequest
from gptcli.decode.near_ties import FLOAT32_TOLERANCE
from gptcli.engine.accelerated import AcceleratedEngine
from gptcli.engine.native import library
from gptcli.engine.native.draft import Int8DraftModel
from gptcli.engine.native.model import NativeCache, NativeModel
from gptcli.errors import count

if TYPE_CHECKING:  # it imports torch
    from gptcli.engine.torch_engine import TorchEngine

# The int8 copy of the head takes about as long to make as it saves in this many greedy steps.
MIN_TOKENS_FOR_INT8_HEAD = 64


class NativeEngine(AcceleratedEngine):
    """Logits by the native kernels; PyTorch serves batches of several sequences."""

    max_tokens = 16

    def __init__(
        self,
        config: ModelConfig,
        parameters: dict[str, Array],
        make_plain: Callable[[], TorchEngine],
        n_threads: int | None = None,
    ) -> None:
        """Take the parameters where they lie; `make_plain` makes the engine in PyTorch when it is needed.

        Raises `ValueError` for arrays that do not fit, `KernelsUnavailableError` without compiled kernels.
        """
        self.config = config
        self.near_tie_tolerance = (
            FLOAT32_TOLERANCE if parameters["tok_emb.weight"].dtype == "float32" else 0.0
        )
        self._model = NativeModel(config, parameters, n_threads, FLOAT32_TOLERANCE)
        self._make_plain = make_plain
        self.draft_model = Int8DraftModel(
            config, parameters, self._model.n_threads, lambda: self.step_seconds
        )
        self.step_seconds = float("inf")  # of one token, at best; infinite before any was timed

    @property
    def n_threads(self) -> int:
        """Return the number of threads that a pass uses."""
        return self._model.n_threads

    @cached_property
    def plain(self) -> TorchEngine:
        """The engine in PyTorch."""
        return self._make_plain()

    def new_cache(self, n_sequences: int, capacity: int) -> object:
        """Return an empty cache: of the kernels for one sequence, else of PyTorch."""
        if n_sequences == 1:
            return self._model.new_cache(1, capacity)
        return self.plain.new_cache(n_sequences, capacity)

    def accepts(self, request: ForwardRequest) -> bool:
        """Return whether the request is for one sequence that the kernels hold."""
        return len(request.ids) == 1 and (request.cache is None or isinstance(request.cache, NativeCache))

    def forward_fast(self, request: ForwardRequest) -> Array:
        """Append the tokens and return float32 logits [1, n_logits, V]."""
        ids, is_argmax = request.ids[0], request.exactness == "argmax"
        cache = self._model.new_cache(1, len(ids)) if request.cache is None else request.cache
        assert isinstance(cache, NativeCache)
        if is_argmax and request.tokens_left > MIN_TOKENS_FOR_INT8_HEAD:
            self._model.build_int8_head()
        start = time.perf_counter()
        logits = self._model.forward(ids, cache, n_logits=request.n_logits, argmax_only=is_argmax)
        if len(ids) == 1:
            self.step_seconds = min(self.step_seconds, time.perf_counter() - start)
        return logits[None]

    def describe(self) -> str:
        """Return what computes."""
        return f"native kernels ({library.active_variant()}), {count(self.n_threads, 'thread')}"
