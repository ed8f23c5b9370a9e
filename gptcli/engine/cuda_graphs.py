"""Decode steps recorded once and replayed: on a GPU one launch a token, where a forward takes hundreds.

A step of T tokens reads its ids and its position from tensors and works on the cache's own memory. Behind a
step of one token stands what the next would be, if the most probable is taken: it is under way before the
host has seen this one, and thrown away if something else is taken. So the GPU never waits for the host; what
comes back is seven numbers a token.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gptcli.engine.summary import NUMBERS, restore, summarise
from gptcli.engine.torch_engine import ModelSteps
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.model.moe import MixtureOfExperts
from gptcli.model.static_cache import StaticCache

SIZES = (1, 4, 8)  # tokens at once; others are filled up to the next of these
# Attention reads whole windows of so many positions, however few are used: masked ones cost memory traffic.
WINDOW = 256
# Recording takes about four steps by PyTorch, and a replayed one a third of one or less.
WORTH_RECORDING = 8

Run = Callable[[], None]


class Recorder(Protocol):
    """What a device gives for replaying: CUDA's graphs, or for tests a plain call."""

    def record(self, step: Run) -> Run:
        """A call that does again what `step` does, on the same memory; `step` may have run before."""

    def fetch(self, source: Tensor) -> Callable[[], Tensor]:
        """Begin to bring a tensor to the host; the call waits for it."""


class CudaGraphs:
    """Recorded by CUDA: a replay is one launch. All recordings share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._host = torch.empty(max(SIZES), NUMBERS, dtype=torch.float64, pin_memory=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._device = device

    def record(self, step: Run) -> Run:
        """First run beside the current stream, as recording wants it: libraries set themselves up."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        return graph.replay

    def fetch(self, source: Tensor) -> Callable[[], Tensor]:
        """By pinned memory, so that the host need not wait for what is launched behind it."""
        host = self._host[: len(source)]
        host.copy_(source, non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(self._device))

        def wait() -> Tensor:
            self._arrived.synchronize()
            return host

        return wait


class _Key(NamedTuple):
    """What a recording is bound to: where the cache lies and how large it is, tokens, positions read."""

    address: int
    capacity: int
    T: int
    window: int


class _Ahead(NamedTuple):
    """The step under way: behind which tokens of which cache, and for which token."""

    cache: "weakref.ref[KVCache]"
    length: int
    token: int

    def is_for(self, ids: Sequence[int], cache: KVCache) -> bool:
        """Whether it is the one that is asked for now."""
        return self.cache() is cache and self.length == cache.length and [self.token] == list(ids)


class GraphSteps:
    """An engine of recorded steps, for one request at a time; what it cannot do the model itself does."""

    max_tokens = max(SIZES)

    def __init__(self, model: GPTModel, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder
        self._plain = ModelSteps(model, "PyTorch")
        self._one_at_a_time = threading.Lock()
        device = model.tok_emb.weight.device
        self._ids = torch.zeros(1, self.max_tokens, dtype=torch.long, device=device)
        self._start = torch.zeros(1, dtype=torch.long, device=device)
        vocab_size = model.config.vocab_size
        self._logits = torch.zeros(self.max_tokens, vocab_size, device=device)
        self._summary = torch.zeros(self.max_tokens, NUMBERS, dtype=torch.float64, device=device)
        self._span = range(vocab_size)
        self._recorded: dict[_Key, Run] = {}
        self._ahead: _Ahead | None = None
        self._clean: weakref.ref[KVCache] | None = None
        self.why_not: str | None = unsupported(model)

    def describe(self) -> str:
        """What decodes."""
        if self.why_not is not None:
            return f"PyTorch ({self.why_not})"
        return "CUDA graphs" if self._recorded else "PyTorch"

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
        """Float32 logits [T, V] on the host, behind what the cache holds; None for lack of room."""
        with self._one_at_a_time:
            ahead, self._ahead = self._ahead, None
            run = self._recording(len(ids), cache, tokens_left)
            if run is None:
                return self._plain.logits(ids, cache, tokens_left, greedy=greedy, logprobs=logprobs)
            T = len(ids)
            if ahead is None or not ahead.is_for(ids, cache):
                filled = [*ids, *[0] * (self.max_tokens - T)]
                self._ids.copy_(torch.tensor([filled]))
                self._start.fill_(cache.length)
                run()
            cache.advance(T)
            if not greedy:
                return self._logits[:T].cpu()
            arrived = self._recorder.fetch(self._summary[:T])
            launched = T == 1 and self._launch_ahead(cache, tokens_left - 1)
            summary = arrived()
            if launched:
                self._ahead = _Ahead(weakref.ref(cache), cache.length, int(summary[0, 3]))
            return restore([summary], [self._span])

    def _launch_ahead(self, cache: KVCache, tokens_left: int) -> bool:
        """Let the step of the most probable token begin, whose id and position the last step has left."""
        run = self._recording(1, cache, tokens_left) if tokens_left > 0 else None
        if run is not None:
            run()
        return run is not None

    def _recording(self, n_tokens: int, cache: KVCache, tokens_left: int) -> Run | None:
        """The recorded step for so many tokens, recorded now if that pays; None where there is none."""
        T = next((size for size in SIZES if size >= n_tokens), None)
        is_prompt = cache.length == 0
        if T is None or is_prompt or cache.length + T > cache.capacity or self.why_not is not None:
            return None
        window = min(cache.capacity, -(-(cache.length + T) // WINDOW) * WINDOW)
        key = _Key(cache.data.data_ptr(), cache.capacity, T, window)
        if self._clean is None or self._clean() is not cache:
            # What is masked still takes part: 0 times the NaN that may lie in memory would be NaN.
            cache.data[..., cache.length :, :].zero_()
            self._clean = weakref.ref(cache)
        if key not in self._recorded and tokens_left >= WORTH_RECORDING:
            # Of another cache, which may be gone: recordings keep what they compute in.
            here = key.address, key.capacity
            self._recorded = {k: run for k, run in self._recorded.items() if (k.address, k.capacity) == here}
            try:
                self._recorded[key] = self._record(T, cache, window)
            except RuntimeError as error:
                self.why_not = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return self._recorded.get(key)

    def _record(self, T: int, cache: KVCache, window: int) -> Run:
        static = StaticCache(cache, window, self._start)

        def step() -> None:
            hidden = self._model.hidden(self._ids[:, :T], static)[0]  # [T, C]
            logits = self._model.out_head(hidden).float()  # [T, V]
            summary = summarise(logits)  # [T, 7]
            self._logits[:T].copy_(logits)
            self._summary[:T].copy_(summary)
            # Should the most probable be taken, this is the next step's input.
            self._ids[:, :1].copy_(summary[-1:, 3:4].long())
            self._start.add_(T)

        # Recording runs the step: it must leave no more behind than what is overwritten anyway.
        ids, start = self._ids.clone(), self._start.clone()
        self._start.fill_(cache.length)
        run = self._recorder.record(step)
        self._ids.copy_(ids)
        self._start.copy_(start)
        return run


def unsupported(model: GPTModel) -> str | None:
    """Why a model's step cannot be recorded, if it cannot."""
    if any(isinstance(module, MixtureOfExperts) for module in model.modules()):
        return "which experts a mixture needs is known only when it runs"
    return None
