"""Decode steps recorded once as CUDA graphs and replayed: one launch per token instead of hundreds.

A step of T tokens reads its ids and its position from tensors and works on the memory of the cache. After a
step of one token the next step is launched at once, for the most probable token, before the host has read
the result; it is discarded if another token is chosen. So the GPU never waits for the host, and only seven
numbers per token are copied back.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gptcli.decode.engine import Array, ForwardRequest
from gptcli.engine.summary import NUMBERS, restore, summarize
from gptcli.engine.torch_engine import TorchEngine, to_numpy
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.model.moe import MixtureOfExperts
from gptcli.model.static_cache import StaticCache

SIZES = (1, 4, 8)  # tokens of a recorded step; other numbers are padded to the next size
# Attention reads whole windows of this many positions; masked ones cost memory traffic.
WINDOW = 256
# Recording takes as long as about four steps in PyTorch; a replayed step takes a third of one or less.
MIN_TOKENS_TO_RECORD = 8

Replay = Callable[[], None]


class Recorder(Protocol):
    """Records and replays steps, as CUDA graphs or, in tests, as plain calls."""

    def record(self, step: Replay) -> Replay:
        """Return a call that repeats `step` on the same memory; `step` may run once now."""

    def fetch(self, source: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to the host, and return a call that waits for it."""


class CudaGraphRecorder:
    """Records CUDA graphs, which share one memory pool; a replay is one launch."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._host = torch.empty(max(SIZES), NUMBERS, dtype=torch.float64, pin_memory=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._device = device

    def record(self, step: Replay) -> Replay:
        """Run the step once on a side stream, which initializes libraries, then capture it."""
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
        """Copy through pinned memory, so that the host does not wait for later launches."""
        host = self._host[: len(source)]
        host.copy_(source, non_blocking=True)
        self._arrived.record(torch.cuda.current_stream(self._device))

        def wait() -> Tensor:
            self._arrived.synchronize()
            return host

        return wait


class _Key(NamedTuple):
    """The key of a recording: the cache's address and capacity, the tokens of a step, the positions read."""

    address: int
    capacity: int
    T: int
    window: int


class _LaunchedStep(NamedTuple):
    """The step that was launched ahead: the cache, its length, and the assumed token."""

    cache: "weakref.ref[KVCache]"
    length: int
    token: int

    def is_for(self, ids: Sequence[int], cache: KVCache) -> bool:
        """Return whether it computes the step for these `ids`."""
        return self.cache() is cache and self.length == cache.length and [self.token] == list(ids)


class CudaGraphEngine:
    """Replays recorded steps of one sequence; PyTorch processes prompts and everything else."""

    max_tokens = max(SIZES)

    def __init__(self, model: GPTModel, recorder: Recorder) -> None:
        self._model, self._recorder = model, recorder
        self._plain = TorchEngine(model)
        self.config, self.near_tie_tolerance = model.config, self._plain.near_tie_tolerance
        self.new_cache = self._plain.new_cache
        self._lock = threading.Lock()  # the recorded steps share their input and output tensors
        device, vocab_size = model.tok_emb.weight.device, model.config.vocab_size
        self._ids = torch.zeros(1, self.max_tokens, dtype=torch.long, device=device)
        self._start = torch.zeros(1, dtype=torch.long, device=device)
        self._logits = torch.zeros(self.max_tokens, vocab_size, device=device)
        self._summary = torch.zeros(self.max_tokens, NUMBERS, dtype=torch.float64, device=device)
        self._recorded: dict[_Key, Replay] = {}
        self._launched: _LaunchedStep | None = None
        self._cleared: weakref.ref[KVCache] | None = None
        self.unavailable_reason: str | None = _unavailable_reason(model)

    def describe(self) -> str:
        """Return what computes the logits."""
        if self.unavailable_reason is not None:
            return f"PyTorch ({self.unavailable_reason})"
        return "CUDA graphs" if self._recorded else "PyTorch"

    @torch.inference_mode()
    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [N, V], sequence after sequence."""
        with self._lock:
            return self._replay(request) if self._accepts(request) else self._plain.forward(request)

    def exact_logits(self, ids: Sequence[int], cache: Any = None, row: int = 0) -> Array:
        """Return the logits [V] after `ids` in float64 arithmetic on the stored weights."""
        with self._lock:
            self._launched = None
            return self._plain.exact_logits(ids, cache, row)

    def _accepts(self, request: ForwardRequest) -> bool:
        """Return whether there is a recorded step for this request, or one could be recorded now."""
        cache = request.cache
        replay = None
        if isinstance(cache, KVCache) and cache.data.shape[2] == 1 and cache.length > 0:  # not a prompt
            replay = self._replay_for(len(request.ids[0]), cache, request.tokens_left)
        if replay is None and cache is not None:
            self._launched = None  # PyTorch may overwrite what the launched step wrote to the cache
        return replay is not None

    def _replay(self, request: ForwardRequest) -> Array:
        """Replay the step, unless it was launched ahead, and launch the next one."""
        ids, cache = request.ids[0], request.cache
        assert isinstance(cache, KVCache)
        T, n = len(ids), 1 if request.n_logits is None else request.n_logits[0]
        launched, self._launched = self._launched, None
        if launched is None or not launched.is_for(ids, cache):
            replay = self._replay_for(T, cache, request.tokens_left)
            assert replay is not None
            self._ids.copy_(torch.tensor([[*ids, *[0] * (self.max_tokens - T)]]))
            self._start.fill_(cache.length)
            replay()
        cache.advance(T)
        if request.exactness == "all":
            return to_numpy(self._logits[T - n : T])
        wait_for_summary = self._recorder.fetch(self._summary[T - n : T])
        is_launched = T == 1 and self._launch_next(cache, request.tokens_left - 1)
        summary = wait_for_summary()  # [n, 7]
        if is_launched:
            self._launched = _LaunchedStep(weakref.ref(cache), cache.length, int(summary[0, 3]))
        return to_numpy(restore([summary], [range(self.config.vocab_size)]))

    def _launch_next(self, cache: KVCache, tokens_left: int) -> bool:
        """Launch the step of the most probable token; the last step has written its id and position."""
        replay = self._replay_for(1, cache, tokens_left) if tokens_left > 0 else None
        if replay is not None:
            replay()
        return replay is not None

    def _replay_for(self, n_tokens: int, cache: KVCache, tokens_left: int) -> Replay | None:
        """Return the recorded step of `n_tokens`, recorded now if that pays; None if there is none."""
        T = next((size for size in SIZES if size >= n_tokens), None)
        if T is None or cache.length + T > cache.capacity or self.unavailable_reason is not None:
            return None
        window = min(cache.capacity, -(-(cache.length + T) // WINDOW) * WINDOW)
        key = _Key(cache.data.data_ptr(), cache.capacity, T, window)
        if self._cleared is None or self._cleared() is not cache:
            # What is masked still takes part: 0 times the NaN that may lie in memory would be NaN.
            cache.data[..., cache.length :, :].zero_()
            self._cleared = weakref.ref(cache)
        if key not in self._recorded and tokens_left >= MIN_TOKENS_TO_RECORD:
            # Recordings of another cache, which may be gone, keep the memory that they compute in.
            here = key.address, key.capacity
            self._recorded = {k: run for k, run in self._recorded.items() if (k.address, k.capacity) == here}
            try:
                self._recorded[key] = self._record(T, cache, window)
            except RuntimeError as error:
                self.unavailable_reason = f"recording failed: {str(error).splitlines()[0]}"
        return self._recorded.get(key)

    def _record(self, T: int, cache: KVCache, window: int) -> Replay:
        static = StaticCache(cache, window, self._start)

        def step() -> None:
            hidden = self._model.hidden(self._ids[:, :T], static)[0]  # [T, C]
            logits = self._model.out_head(hidden).float()  # [T, V]
            summary = summarize(logits)  # [T, 7]
            self._logits[:T].copy_(logits)
            self._summary[:T].copy_(summary)
            # If the most probable token is taken, this is the next step's input.
            self._ids[:, :1].copy_(summary[-1:, 3:4].long())
            self._start.add_(T)

        # Recording runs the step, so its changes to the inputs are undone.
        ids, start = self._ids.clone(), self._start.clone()
        self._start.fill_(cache.length)
        replay = self._recorder.record(step)
        self._ids.copy_(ids)
        self._start.copy_(start)
        return replay


def _unavailable_reason(model: GPTModel) -> str | None:
    """Return why the model's steps cannot be recorded; None if they can."""
    if any(isinstance(module, MixtureOfExperts) for module in model.modules()):
        return "the experts of a mixture are known only at run time"
    return None
