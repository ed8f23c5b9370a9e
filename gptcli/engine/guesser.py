"""An int8 copy of a model, whose guesses the engine checks: made in a thread, once a text is long enough."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Protocol

import torch

from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.model.int8 import int8_copy
from gptcli.system.memory import available_bytes, trim_malloc

if TYPE_CHECKING:
    from gptcli.engine.cpu import CpuEngine


class MainEngine(Protocol):
    """The engine that verifies the drafts, as far as the copy needs to know it."""

    engine: CpuEngine | None
    one_at_a_time: threading.Lock

    @property
    def step_seconds(self) -> float:
        """Seconds of one step; infinite where none was measured."""

    def prepare(self, *, wait: bool = False) -> None:
        """Begin to prepare the kernels; with `wait`, until they are."""


# So many bytes of weights are copied in a second beside decoding, and so much of a step is saved:
# tests/benchmarks/engine.py. The first is half of what is measured: the copy takes memory, too.
COPIED_BYTES_PER_SECOND, SAVED = 0.8e9, 0.4


class Guesser:
    """What comes next by the int8 copy, as `decode.draft` asks; its switch's engine decides what does."""

    def __init__(self, model: GPTModel, switch: MainEngine) -> None:
        self._model, self._switch = model, switch
        self._copy: CpuEngine | None = None
        self._thread: threading.Thread | None = None
        self._n_bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._seconds = self._n_bytes / COPIED_BYTES_PER_SECOND

    @property
    def is_ready(self) -> bool:
        """Whether the copy is there."""
        return self._copy is not None

    @property
    def is_cheaper(self) -> bool:
        """Whether int8 is cheaper than what it copies: float32 weights."""
        return self._model.out_head.weight.dtype == torch.float32

    def is_worth_it(self, tokens_left: int) -> bool:
        """Whether the copy is there; it is made where so many tokens are worth it and there is memory."""
        if self._thread is None and self._switch.engine is not None:
            saved = tokens_left * self._switch.step_seconds * SAVED
            # Infinite where no step was measured, and then nothing is known.
            if self._seconds < saved < math.inf and self.is_cheaper and available_bytes() > self._n_bytes:
                self.prepare()
        return self.is_ready

    @torch.inference_mode()
    def draft(self, token: int, cache: KVCache, n: int) -> list[int]:
        """The n tokens behind `token`, which follows what the cache holds; the cache is left as it was."""
        assert self._copy is not None
        length, guesses = cache.length, list[int]()
        with self._switch.one_at_a_time:
            for _ in range(n):
                token = int(self._copy.logits([token], cache)[0].numpy().argmax())
                guesses.append(token)
        cache.truncate(length)
        return guesses

    def prepare(self, *, wait: bool = False) -> None:
        """Begin to make the copy, behind the engine; with `wait` it is there when this returns."""
        self._switch.prepare(wait=wait)
        if self._thread is None:
            self._thread = threading.Thread(target=self._prepare)
            self._thread.start()
        if wait:
            self._thread.join()

    def _prepare(self) -> None:
        try:
            from gptcli.engine.cpu import CpuEngine

            if (engine := self._switch.engine) is not None:
                copy = CpuEngine(int8_copy(self._model, engine.int8_head), engine.n_threads)
                copy.warm_up()
                copy.warm_up_head()
                self._copy = copy
                trim_malloc()
        except Exception:  # too little memory, say: the text is the same without
            return
