"""When the engine takes over: prepared in a thread while PyTorch decodes, once it is measured to pay."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gptcli.engine.guesser import Guesser
from gptcli.engine.torch_engine import ModelSteps
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


class Switch:
    """Gives the engine's logits once it is there. All decoding of a model shares one switch."""

    def __init__(self, model: GPTModel) -> None:
        self._model = model
        self.engine: CpuEngine | None = None
        self.one_at_a_time = threading.Lock()  # the engine's buffers are one, decoding may be many
        self._thread: threading.Thread | None = None
        self._prompt_thread: threading.Thread | None = None
        self._threads = 0  # of PyTorch, to be given back after the preparation
        self._wants_exact = False  # where it was not foreseen, the kernel is compiled when it is wanted
        self._steps, self._step_seconds, self._last = 0, float("inf"), 0.0
        self._plain = ModelSteps(model, "PyTorch")  # where there is no kernel, it checks guesses
        self.guesser = Guesser(model, self)
        self.why_not: str | None = None

    @property
    def max_tokens(self) -> int:
        """As many tokens at once; 0 as long as the engine is not ready."""
        if self.why_not is not None:
            return self._plain.max_tokens
        return 0 if self.engine is None else self.engine.max_tokens

    @property
    def step_seconds(self) -> float:
        """What a step of the engine's takes, by those of PyTorch before it; infinite where there was none."""
        return self._step_seconds * (1 - SAVED)

    def describe(self) -> str:
        """What decodes: the kernels with their threads, or PyTorch and why."""
        if self.engine is not None:
            return self.engine.describe() + (", int8 guesses" if self.guesser.is_ready else "")
        return f"PyTorch ({self.why_not})" if self.why_not else "PyTorch"

    def logits(
        self,
        ids: Sequence[int],
        cache: KVCache,
        tokens_left: int,
        *,
        greedy: bool,
        logprobs: bool,
        last: int | None = None,
    ) -> Tensor | None:
        """Float32 logits [T, V] of the ids behind what the cache holds; None where PyTorch has to do it.

        Of the `last` alone, if that is given; of more than `max_tokens`, of one. `tokens_left` are still
        wanted: a few are not worth the preparation.
        """
        if self._threads and not (self._thread and self._thread.is_alive()):
            torch.set_num_threads(self._threads)
            self._threads = 0
        if cache.length + len(ids) > cache.capacity:  # the window slides, which takes whole passes
            return None
        if self.engine is not None:
            is_step, largest_only = len(ids) <= self.engine.max_tokens, greedy and not logprobs
            if not is_step and not self._takes_prompts(len(ids)):
                return None
            with self.one_at_a_time:
                if is_step:
                    return self.engine.logits(ids, cache, largest_only=largest_only, last=last).clone()
                return self.engine.prefill(ids, cache, largest_only=largest_only).clone()
        if self.why_not is not None:
            return self._plain.logits(ids, cache, tokens_left, greedy=greedy, logprobs=logprobs)
        if len(ids) == 1 and self._thread is None:
            self._wants_exact = not greedy or logprobs
            self._measure()
            saved = max(tokens_left, self._steps) * self._step_seconds * SAVED
            if self._steps > WARM_UP and saved > PREPARE_SECONDS:
                self.prepare()
        return None

    def prepare(self, *, wait: bool = False) -> None:
        """Begin to make the engine ready; with `wait` it is when this returns, or `why_not` says why not."""
        if self._thread is None:
            self._threads = torch.get_num_threads()
            # No daemon: Python would end under its feet, and PyTorch abort. The command line does not wait.
            self._thread = threading.Thread(target=self._prepare, args=(self._threads,))
            self._thread.start()
            # Threads of PyTorch that share a core with the compiler would keep all others waiting.
            torch.set_num_threads(max(1, self._threads - 1))
        if wait:
            self._thread.join()

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
        if self._prompt_thread is None:
            self._prompt_thread = threading.Thread(target=self._prepare_prefill)
            self._prompt_thread.start()
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
        except Exception as error:  # no Numba here, or none that works: PyTorch goes on
            self.why_not = f"{type(error).__name__}: {error}"
        finally:
            sys.setswitchinterval(interval)
