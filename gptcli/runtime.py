"""Loading a model source: weights, device, dtype, memory, and the engine that computes logits."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gptcli.config.cost import count_parameters, kv_bytes_per_token
from gptcli.config.dtypes import COMPUTE_DTYPES, SAFETENSORS_DTYPES
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import preset_source, resolve
from gptcli.decode.engine import Engine
from gptcli.decode.options import Speculation
from gptcli.decode.speculation import Speculator
from gptcli.engine.onednn import use_onednn
from gptcli.engine.switch import Switch
from gptcli.errors import UsageError
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.model.int8 import quantize_int8
from gptcli.system.device import find_device, free_bytes
from gptcli.system.memory import require_memory
from gptcli.weights.load import load_weights
from gptcli.weights.source import ModelSource

if TYPE_CHECKING:
    from gptcli.parallel.process_group import ProcessGroup

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in COMPUTE_DTYPES}


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device, in evaluation mode, with the engine that computes its logits.

    `dtype` is a name such as `float32` or `int8 with float32`; `notes` are for the user. `weight_bytes`
    counts all weights, a tied head once; `bytes_per_step` counts those that decoding one token reads. If a
    `group` of processes shares the model, both are totals over all of them.
    """

    model: GPTModel
    config: ModelConfig
    device: torch.device
    dtype: str
    load_seconds: float
    notes: tuple[str, ...]
    weight_bytes: int
    bytes_per_step: int
    engine: Engine
    group: ProcessGroup | None = None

    def device_facts(self) -> dict[str, Any]:
        """Return the device, dtype, threads, torch version and engine, for the JSON record."""
        facts = {
            "device": str(self.device),
            "dtype": self.dtype,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "engine": self.engine.describe(),
        }
        return facts if self.group is None else facts | {"processes": self.group.ranks.world_size}

    def speculator(
        self, speculation: Speculation = "auto", max_draft_tokens: int | None = None
    ) -> Speculator | None:
        """Return the speculator for one completion; None for no speculation.

        Raises `UsageError` for `self` if an int8 copy would not be cheaper than the model.
        """
        if speculation == "off":
            return None
        draft_model = self.engine.guesser if isinstance(self.engine, Switch) else None
        if speculation == "self":
            self.prepare_draft_model()
        return Speculator(
            max_draft_tokens,
            measures=self.group is None,  # several processes must verify the same drafts
            lookup=speculation != "self",
            draft_model=None if speculation == "lookup" else draft_model,
        )

    def prepare_draft_model(self) -> None:
        """Make the draft model, an int8 copy, now; raises `UsageError` if it would not be cheaper."""
        if not isinstance(self.engine, Switch) or not self.engine.guesser.is_cheaper:
            raise UsageError(
                "--speculate self: the int8 draft model needs float32 weights, in one process on a CPU"
            )
        self.engine.guesser.prepare(wait=True)
        if not self.engine.guesser.is_ready:
            raise UsageError(f"--speculate self: this model has no kernels ({self.engine.describe()})")


def load(
    source: ModelSource,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: bool = False,
    threads: int | None = None,
    seed: int = 123,
    cache_tokens: int = 0,
    group: ProcessGroup | None = None,
) -> LoadedModel:
    """Return the model of a source: its checkpoint, or random weights drawn from `seed`.

    `device` and `dtype` are names as on the command line, `auto` among them. `cache_tokens` is the length of
    the key/value cache that must fit into memory with the weights; `quantize` makes the linear layers int8;
    `threads` sets PyTorch's CPU threads for the whole process. With a `group` this process loads its shard of
    the model, on the group's device. Raises `DeviceError`, `WeightsError`, and `ResourceError` before it
    loads a model that does not fit.
    """
    start = time.perf_counter()
    if threads is not None:
        torch.set_num_threads(threads)
    place = find_device(device) if group is None else group.device
    dtype_name, dtype_notes = choose_dtype(dtype, source, place)
    model, notes = _load_parameters(source, place, dtype_name, seed, cache_tokens, group)
    if source.plan is None:
        notes.insert(
            0, f"the weights are random (seed {seed}), so the text is noise; --weights loads real ones"
        )
    if place.type == "cpu" and dtype_name == "float16":
        _store_by_rows(model)
    if quantize:
        quantize_int8(model)
        dtype_name = f"int8 with {dtype_name}"
    if place.type == "cpu":
        use_onednn(model)
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    n_bytes = [_count_bytes(model)]
    if group is not None:
        n_bytes = group.all_gather_object(n_bytes[0])
    return LoadedModel(
        model=model,
        config=model.config,
        device=place,
        dtype=dtype_name,
        load_seconds=time.perf_counter() - start,
        notes=(*source.notes, *notes, *dtype_notes),
        weight_bytes=sum(held for held, _ in n_bytes),
        bytes_per_step=sum(read for _, read in n_bytes),
        engine=_make_engine(model, group),
        group=group,
    )


def _load_parameters(
    source: ModelSource,
    device: torch.device,
    dtype: str,
    seed: int,
    cache_tokens: int,
    group: ProcessGroup | None,
) -> tuple[GPTModel, list[str]]:
    """Return the model, or this process's shard of it, and notes for the user."""
    if group is not None:
        from gptcli.parallel.load import load_shard

        return load_shard(source, group, dtype=DTYPES[dtype], seed=seed, cache_tokens=cache_tokens)
    needed, available, what = _memory(source, device, dtype, cache_tokens)
    if needed > available:
        require_memory(needed, available, what, _what_fits(source, device, dtype, cache_tokens))
    if source.plan is not None:
        loaded = load_weights(source.plan, device=device, dtype=DTYPES[dtype])
        return loaded.model, [*source.plan.notes, *loaded.notes]
    # Drawn on the CPU in float32, then cast and moved, so that every device prints the same text.
    model = random_model(source.config, seed).requires_grad_(False).to(device=device, dtype=DTYPES[dtype])
    model.tie_head()
    return model, []


def _make_engine(model: GPTModel, group: ProcessGroup | None) -> Engine:
    """Return the fastest engine for the model's device; it falls back on PyTorch for what it cannot do."""
    if group is not None:
        from gptcli.parallel.load import parallel_engine

        return parallel_engine(model, group)
    device = model.tok_emb.weight.device
    if device.type == "cpu":
        return Switch(model)
    from gptcli.engine.cuda_graphs import CudaGraphEngine, CudaGraphRecorder

    return CudaGraphEngine(model, CudaGraphRecorder(device))


def _count_bytes(model: GPTModel) -> tuple[int, int]:
    """Return the bytes of all weights, and of those that decoding one token reads.

    It reads all but the embeddings, and a token embedding that is the head as well.
    """
    weight_bytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    looked_up = [model.pos_emb.weight]
    if model.out_head.weight is not model.tok_emb.weight:
        looked_up.append(model.tok_emb.weight)
    return weight_bytes, weight_bytes - sum(p.nbytes for p in looked_up)


def _store_by_rows(model: GPTModel) -> None:
    """Store the matrices row by row: in float16 on a CPU, a product by columns takes thirty times as long."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.contiguous()


def choose_dtype(name: str, source: ModelSource, device: torch.device) -> tuple[str, list[str]]:
    """Return the dtype and notes on it; `auto` is float32 on a CPU and the file's dtype on a GPU."""
    if name != "auto" or source.plan is None:
        return ("float32" if name == "auto" else name), []
    sizes: Counter[str] = Counter()
    for tensor in source.plan.checkpoint.tensors.values():
        stored = SAFETENSORS_DTYPES[tensor.dtype].name
        sizes[stored if stored in DTYPES else "float32"] += tensor.n_bytes
    in_file = max(sizes, key=lambda dtype: sizes[dtype])
    if device.type != "cpu" or in_file == "float32":
        return in_file, []
    note = f"the file holds {in_file}; on a CPU it runs as float32 (--dtype {in_file} keeps it)"
    return "float32", [] if source.plan.ships else [note]


def _what_fits(source: ModelSource, device: torch.device, dtype: str, cache_tokens: int) -> str:
    """Return the options that would fit: a smaller dtype, and the largest smaller preset."""
    fitting = []
    for smaller in ("bfloat16",) if dtype == "float32" else ():
        needed, available, _ = _memory(source, device, smaller, cache_tokens)
        if needed <= available:
            fitting.append(f"--dtype {smaller}")
    if source.plan is None:
        for preset in ("gpt2-large", "gpt2-medium", "gpt2-small", "stories"):
            other = ModelSource(resolve([preset_source(preset)]))
            needed, available, _ = _memory(other, device, dtype, cache_tokens)
            if needed <= available and count_parameters(other.config) < count_parameters(source.config):
                fitting.append(f"--preset {preset}")
                break
    return " or ".join(fitting) or "a machine with more"


def _memory(source: ModelSource, device: torch.device, dtype: str, cache_tokens: int) -> tuple[int, int, str]:
    """Return the needed bytes, the available bytes, and a description of the need."""
    element = DTYPES[dtype].itemsize
    config = source.config
    cache = kv_bytes_per_token(config, element) * min(cache_tokens, config.context_length)
    weights = count_parameters(config) * element
    if device.type == "cpu" and source.plan is not None:  # mapped tensors need no memory of their own
        tensors = source.plan.checkpoint.tensors.values()
        copied = sum(t.n_bytes for t in tensors if SAFETENSORS_DTYPES[t.dtype].name != dtype)
        weights = min(weights, copied * element // 2)
    elif device.type == "cpu" and dtype != "float32":  # drawn in float32 first
        weights += count_parameters(config) * 4
    what = f"{dtype} weights ({weights:,}) and key/value cache ({cache:,})"
    return weights + cache, free_bytes(device), what
