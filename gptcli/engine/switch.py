"""When the engine takes over: prepared in a thread while PyTorch decodes, once it is measured to pay."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import torch

from gptcli.decode.engine import Array, ForwardRequest
from gptcli.engine.accelerated import AcceleratedEngine
from gptcli.engine.guesser import Guesser
from gptcli.engine.torch_engine import to_numpy
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.system.memory import trim_malloc

if TYPE_CHECKING:
    from gptcli.engine.cpu import CpuEngine

# What importing Numba and loading compiled kernels takes beside decoding, and the part of a step that it
# saves: tests/benchmarks/engine.py prints both. Where the kernels were never compiled it takes ten times as
# long, once on a machine; PyTorch decodes meanwhile.
PREPARE_SECONDS = 0.6
SAVED = 0.5
# So many tokens at once are taken in sooner by the kernels, fewer by PyTorch as soon.
PROMPT_TOKENS = 64
# The first steps are slower than the rest, so that many are not counted.
WARM_UP = 2


class Switch(AcceleratedEngine):
    """Gives the engine's logits once it is there. All decoding of a model shares one switch."""

    def __init__(self, model: GPTModel) -> None:
        super().__init__(model)
        self.engine: CpuEngine | None = None
        self.one_at_a_time = threading.Lock()  # the engine's buffers are one, decoding may be many
        self.preparation: threading.Thread | None = None
        self.prompt_preparation: threading.Thread | None = None
        self._wants_exact = False  # where it was not foreseen, the kernel is compiled when it is wanted
        self._steps, self._step_seconds, self._last = 0, float("inf"), 0.0
        self.guesser = Guesser(model, self)
        self.unavailable_reason: str | None = None

    @property
    def max_tokens(self) -> int:
        """As many tokens at once; 0 as long as the engine is not ready."""
        if self.unavailable_reason is not None:
            return self.plain.max_tokens
        return 0 if self.engine is None else self.engine.max_tokens

    @property
    def step_seconds(self) -> float:
        """What a step of the engine's takes, by those of PyTorch before it; infinite where there was none."""
        return self._step_seconds * (1 - SAVED)

    def describe(self) -> str:
        """What decodes: the kernels with their threads, or PyTorch and why."""
        if self.engine is not None:
            return self.engine.describe() + (", int8 draft model" if self.guesser.is_ready else "")
        return f"PyTorch ({self.unavailable_reason})" if self.unavailable_reason else "PyTorch"

    def accepts(self, request: ForwardRequest) -> bool:
        """Return whether the kernels can serve a request; where they are not ready they may get ready."""
        cache = request.cache
        if not isinstance(cache, KVCache) or cache.data.shape[2] != 1:
            return False
        n_tokens = len(request.ids[0])
        if cache.length + n_tokens > cache.capacity:
            return False
        if self.engine is not None:
            is_step = n_tokens <= self.engine.max_tokens
            return is_step or (request.n_logits == 1 and self._takes_prompts(n_tokens))
        if self.unavailable_reason is None and n_tokens == 1 and self.preparation is None:
            self._wants_exact = request.exactness != "argmax"
            self._measure()
            saved = max(request.tokens_left, self._steps) * self._step_seconds * SAVED
            if self._steps > WARM_UP and saved > PREPARE_SECONDS:
                self.prepare()
        return False

    @torch.inference_mode()
    def forward_fast(self, request: ForwardRequest) -> Array:
        """Compute by the kernels: float32 logits [1, n_logits, V]."""
        ids, cache, largest_only = request.ids[0], request.cache, request.exactness == "argmax"
        assert self.engine is not None
        assert isinstance(cache, KVCache)
        with self.one_at_a_time:
            if len(ids) <= self.engine.max_tokens:
                logits = self.engine.logits(ids, cache, largest_only=largest_only, last=request.n_logits)
            else:
                logits = self.engine.prefill(ids, cache, largest_only=largest_only)
            return to_numpy(logits.clone())[None]

    def forward_plain(self, request: ForwardRequest) -> Array:
        """Compute by PyTorch, which leaves a thread to the preparation while that runs."""
        with self._without_a_thread():
            return super().forward_plain(request)

    @contextmanager
    def _without_a_thread(self) -> Iterator[None]:
        """Let PyTorch take one thread less: if it shared a core with the compiler, all others would wait.

        The count belongs to the host program, so it is as before when the block ends.
        """
        if self.preparation is None or not self.preparation.is_alive():
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(max(1, before - 1))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def prepare(self, *, wait: bool = False) -> None:
        """Begin to make the engine ready; with `wait` it is when this returns, or `why_not` says why not."""
        if self.preparation is None:
            # No daemon: Python would end under its feet, and PyTorch abort. The command line does not wait.
            self.preparation = threading.Thread(target=self._prepare, args=(torch.get_num_threads(),))
            self.preparation.start()
        if wait:
            self.preparation.join()

    def _prepare_head(self, engine: CpuEngine) -> None:
        """The int8 head, for which there may be no memory, and the exact one where that is wanted."""
        with suppress(MemoryError):
            engine.build_quick_head()
        if self._wants_exact or engine.int8_head is None:
            engine.warm_up_head()

    def _takes_prompts(self, n_tokens: int) -> bool:
        """Whether the engine takes in so many; it gets ready for it beside the first long prompt.

        A process that has one prompt alone is spared the time and the memory.
        """
        assert self.engine is not None
        if n_tokens < PROMPT_TOKENS:
            return False
        if self.prompt_preparation is None:
            self.prompt_preparation = threading.Thread(target=self._prepare_prefill)
            self.prompt_preparation.start()
        return self.engine.can_prefill

    def _prepare_prefill(self) -> None:
        assert self.engine is not None
        with suppress(Exception):  # too little memory, say: PyTorch goes on
            self.engine.prepare_prefill()

    def _measure(self) -> None:
        now = time.perf_counter()
        if self._steps >= WARM_UP:
            self._step_seconds = min(self._step_seconds, now - self._last)
        self._steps += 1
        self._last = now

    def _prepare(self, n_threads: int) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)  # PyTorch takes the interpreter's lock back 150 times a token
        try:
            from gptcli.engine.cpu import CpuEngine

            engine = CpuEngine(self._model, n_threads)
            engine.warm_up()
            self._prepare_head(engine)
            trim_malloc()  # by the compiler, most of it
            self.engine = engine
        except ValueError as error:  # the model has no kernels
            self.unavailable_reason = str(error)
        except Exception as error:  # no Numba here, or none that works: PyTorch goes on
            self.unavailable_reason = f"the kernels cannot be prepared: {error or type(error).__name__}"
        finally:
            sys.setswitchinterval(interval)
