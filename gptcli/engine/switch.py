"""When the engine takes over: prepared in a thread while PyTorch decodes, once it is measured to pay.

And when an int8 copy of the model joins it, whose guesses it checks: later still, for that takes longer and
saves less.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gptcli.engine.model_steps import ModelSteps
from gptcli.memory import available_bytes
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.quantize import int8_copy

if TYPE_CHECKING:
    from gptcli.engine.cpu import CpuEngine

# What importing Numba and loading compiled kernels takes beside decoding, and the part of a step that it
# saves: tests/benchmarks/engine.py prints both. Where the kernels were never compiled it takes ten times as
# long, once on a machine; PyTorch decodes meanwhile.
PREPARE_SECONDS = 0.6
SAVED = 0.5
# The same of the int8 copy, which is made from so many bytes a second: tests/benchmarks/engine.py prints it.
COPIED_BYTES_PER_SECOND, SAVED_BY_GUESSES = 0.8e9, 0.2
# The first steps are slower than the rest, so that many are not counted.
WARM_UP = 2


class Switch:
    """Gives the engine's logits once it is there. All decoding of a model shares one switch."""

    def __init__(self, model: GPTModel) -> None:
        self._model = model
        self._engine: CpuEngine | None = None
        self._one_at_a_time = threading.Lock()  # the engine's buffers are one, decoding may be many
        self._thread: threading.Thread | None = None
        self._threads = 0  # of PyTorch, to be given back after the preparation
        self._steps, self._step_seconds, self._last = 0, float("inf"), 0.0
        self._plain = ModelSteps(model, "PyTorch")  # where there is no kernel, it checks guesses
        self._guesser: CpuEngine | None = None
        self._guesser_thread: threading.Thread | None = None
        self.why_not: str | None = None

    @property
    def max_tokens(self) -> int:
        """As many tokens at once; 0 as long as the engine is not ready."""
        if self.why_not is not None:
            return self._plain.max_tokens
        return 0 if self._engine is None else self._engine.max_tokens

    def describe(self) -> str:
        """What decodes: the kernels with their threads, or PyTorch and why."""
        if self._engine is not None:
            return self._engine.describe() + (", int8 guesses" if self._guesser else "")
        return f"PyTorch ({self.why_not})" if self.why_not else "PyTorch"

    def logits(
        self, ids: Sequence[int], cache: KVCache, tokens_left: int, *, greedy: bool, logprobs: bool
    ) -> Tensor | None:
        """Float32 logits [T, V] of the ids behind what the cache holds; None where PyTorch has to do it.

        `tokens_left` are still wanted: a few are not worth the preparation.
        """
        if self._threads and not (self._thread and self._thread.is_alive()):
            torch.set_num_threads(self._threads)
            self._threads = 0
        if cache.length + len(ids) > cache.capacity:  # the window slides, which takes whole passes
            return None
        if self._engine is not None:
            if len(ids) > self._engine.max_tokens:
                return None
            with self._one_at_a_time:
                logits = self._engine.logits(ids, cache, largest_only=greedy and not logprobs)
                return logits.clone()
        if self.why_not is not None:
            return self._plain.logits(ids, cache, tokens_left, greedy=greedy, logprobs=logprobs)
        if len(ids) == 1 and self._thread is None:
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

    @property
    def takes_guesses(self) -> bool:
        """Whether an int8 copy is cheaper than what it copies: float32 weights."""
        return self._model.out_head.weight.dtype == torch.float32

    def can_guess(self, tokens_left: int) -> bool:
        """Whether the int8 copy is there to guess; it is made where so many tokens are worth it."""
        if self._guesser_thread is None and self._engine is not None and self.takes_guesses:
            n_bytes = sum(parameter.nbytes for parameter in self._model.parameters())
            saved = tokens_left * self._step_seconds * (1 - SAVED) * SAVED_BY_GUESSES
            if saved > n_bytes / COPIED_BYTES_PER_SECOND and available_bytes() > n_bytes:
                self.prepare_guesses()
        return self._guesser is not None

    def prepare_guesses(self, *, wait: bool = False) -> None:
        """Begin to make the int8 copy, behind the engine; with `wait` it is there when this returns."""
        self.prepare(wait=wait)
        if self._guesser_thread is None:
            self._guesser_thread = threading.Thread(target=self._prepare_guesses)
            self._guesser_thread.start()
        if wait:
            self._guesser_thread.join()

    def guess(self, token: int, cache: KVCache, n: int) -> list[int]:
        """The n tokens behind `token`, which follows what the cache holds, by the int8 copy."""
        assert self._guesser is not None
        length, guesses = cache.length, list[int]()
        with self._one_at_a_time:
            for _ in range(n):
                token = int(self._guesser.logits([token], cache)[0].numpy().argmax())
                guesses.append(token)
        cache.truncate(length)
        return guesses

    def _prepare_guesses(self) -> None:
        try:
            from gptcli.engine.cpu import CpuEngine

            if self._engine is not None:
                guesser = CpuEngine(int8_copy(self._model), self._engine.n_threads)
                guesser.warm_up()
                self._guesser = guesser
        except Exception:  # too little memory, say: the text is the same without
            return

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
            self._engine = engine
            engine.build_quick_head()  # the engine decodes meanwhile
        except Exception as error:  # no Numba here, or none that works: PyTorch goes on
            self.why_not = f"{type(error).__name__}: {error}"
        finally:
            sys.setswitchinterval(interval)
