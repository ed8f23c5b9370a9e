"""The PyTorch model as an engine, on any device: to be read, and for GPUs and several processes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gptcli.config.cost import kv_bytes_per_token
from gptcli.config.model_config import ModelConfig
from gptcli.decode.engine import Array, ForwardRequest
from gptcli.decode.near_ties import FLOAT32_TOLERANCE
from gptcli.engine.summary import restore, summarize
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.model.mask import causal_mask
from gptcli.system.memory import available_bytes, require_memory

# On a CPU a long prompt is processed in parts: matrix products are as fast, and attention skips most of what
# the mask hides. 1,000 tokens of GPT-2 small take 0.66 s instead of 0.80.
PREFILL_TOKENS = 256


class TorchEngine:
    """Computes logits with `GPTModel`, in PyTorch."""

    max_tokens = 8

    def __init__(self, model: GPTModel, description: str = "PyTorch") -> None:
        self._model, self._description = model, description
        self._weight: Tensor = model.tok_emb.weight

    @property
    def config(self) -> ModelConfig:
        """Return the config of the model."""
        return self._model.config

    @property
    def near_tie_tolerance(self) -> float:
        """Return the relative difference of a near tie; 0 for a model that is not in float32."""
        return FLOAT32_TOLERANCE if self._weight.dtype == torch.float32 else 0.0

    def new_cache(self, n_sequences: int, capacity: int) -> KVCache:
        """Return an empty cache.

        Raises `ResourceError` for several sequences if the cache does not fit into the CPU's memory.
        """
        capacity = min(capacity, self.config.context_length)
        if n_sequences > 1 and self._weight.device.type == "cpu":
            n_bytes = kv_bytes_per_token(self.config, self._weight.itemsize) * capacity * n_sequences
            what = f"the key/value cache of {n_sequences} sequences of {capacity} tokens"
            require_memory(n_bytes, available_bytes(), what, "a smaller --batch-size or --max-new-tokens")
        return self._model.new_cache(n_sequences, capacity)

    @torch.inference_mode()
    def forward(self, request: ForwardRequest) -> Array:
        """Append the new tokens to the cache and return float32 logits [N, V], sequence after sequence."""
        hidden = self._hidden(request)  # [N, C]
        if request.exactness == "all":
            return to_numpy(self._model.out_head(hidden))
        logits = self._model.greedy_logits(hidden)  # [N, V]
        if logits.is_cuda and logits.shape[-1] >= 3:  # copy seven numbers to the host instead of all
            logits = restore([summarize(logits).cpu()], [range(self.config.vocab_size)])
        return to_numpy(logits)

    @torch.inference_mode()
    def exact_logits(self, ids: Sequence[int], cache: Any = None, row: int = 0) -> Array:  # noqa: ARG002
        """Return the logits [V] after `ids` in float64 arithmetic on the stored weights.

        One layer at a time is cast to float64, so that it takes little memory; the cache is not used.
        """
        model, T = self._model, len(ids)
        idx = torch.tensor([list(ids)], device=self._weight.device)  # [1, T]
        mask = causal_mask(T, T, idx.device)
        x = model.tok_emb(idx).double() + model.pos_emb.weight[:T].double()  # [1, T, C]
        for layer, block in enumerate(model.trf_blocks):
            with _in_float64(block):
                x = block(x, mask, None, layer)  # [1, T, C]
        with _in_float64(model.final_norm), _in_float64(model.out_head):
            logits: Tensor = model.out_head(model.final_norm(x[0, -1:]))[0]  # [V]
        return logits.cpu().numpy()

    def describe(self) -> str:
        """Return what computes the logits."""
        return self._description

    def _hidden(self, request: ForwardRequest) -> Tensor:
        """Return the hidden states of the last `n_logits` tokens of each sequence, [N, C]."""
        lengths = [len(ids) for ids in request.ids]
        n_logits, T = request.n_logits or [1] * len(lengths), max(lengths)
        # Padded on the right with the sequence's last token, which no earlier token attends to.
        padded = [[*ids, *[ids[-1]] * (T - len(ids))] for ids in request.ids]
        idx = torch.tensor(padded, device=self._weight.device)  # [B, T]
        cache: Any = request.cache
        if cache is None:
            return self._run(idx, None, n_logits, lengths)
        first, B = request.first_row, len(lengths)
        rows = cache if (first, B) == (0, len(cache.lengths)) else cache.view(first, B)
        held = list(rows.lengths)
        hidden = self._run(idx, rows, n_logits, lengths)
        cache.lengths[first : first + B] = [before + new for before, new in zip(held, lengths, strict=True)]
        return hidden

    def _run(
        self, idx: Tensor, cache: KVCache | None, n_logits: Sequence[int], lengths: Sequence[int]
    ) -> Tensor:  # [N, C]
        T = idx.shape[1]
        in_step = cache is None or len(set(cache.lengths)) == 1
        if max(n_logits) == 1 and in_step and min(lengths) == T:
            # The head needs only the last token, which attends to all others, so a prompt can come in parts.
            size = PREFILL_TOKENS if cache is not None and idx.device.type == "cpu" else T
            for part in torch.split(idx, size, dim=1):
                hidden = self._model.hidden(part, cache, last_only=True)  # [B, 1, C]
            return hidden[:, 0]
        hidden = self._model.hidden(idx, cache)  # [B, T, C]
        places = [
            b * T + t
            for b, (length, n) in enumerate(zip(lengths, n_logits, strict=True))
            for t in range(length - n, length)
        ]
        return hidden.flatten(0, 1)[torch.tensor(places, device=idx.device)]  # [N, C]


@contextmanager
def _in_float64(module: nn.Module) -> Iterator[None]:
    """Cast a module to float64 inside the `with` block; afterwards it has its own numbers again."""
    tensors = [*module.parameters(), *module.buffers()]
    before = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.double()
        yield
    finally:
        for tensor, data in zip(tensors, before, strict=True):
            tensor.data = data


def to_numpy(logits: Tensor) -> Array:
    """Return logits of any dtype and device as float32 in NumPy.

    NumPy works with one thread and is done before PyTorch has woken its threads: 2 µs instead of 30.
    """
    numbers: Array = logits.float().cpu().numpy()
    return np.ascontiguousarray(numbers)
