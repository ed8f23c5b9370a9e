"""The choice of an engine, and loading for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from gptcli.errors import ResourceError, UsageError
from gptcli.runtime.bytes_per_step import count_bytes
from gptcli.runtime.loaded_model import LoadedModel
from gptcli.runtime.memory_check import check_memory, choose_dtype
from gptcli.runtime.native_runtime import force_kernels, kernels_error, unavailable_reason
from gptcli.system.device import Device, find_device
from gptcli.weights.source import ModelSource

if TYPE_CHECKING:
    from gptcli.model.gpt import GPTModel
    from gptcli.parallel.process_group import ProcessGroup

EngineName = Literal["auto", "native", "torch"]


def load(
    source: ModelSource,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: bool = False,
    engine: EngineName = "auto",
    kernels: str | None = None,
    threads: int | None = None,
    seed: int = 123,
    cache_tokens: int = 0,
    group: ProcessGroup | None = None,
) -> LoadedModel:
    """Load a checkpoint, or draw random weights from `seed`; what does not fit into memory is refused first.

    `device` and `dtype` are the command line's names, `auto` among them. `engine` is `native`, `torch`, or
    `auto`: the native kernels on a CPU, where they are compiled, else PyTorch, which is imported only then.
    `kernels` forces those of one instruction set, such as `x86_64_v3`, in the whole process. `threads` are
    those of the kernels, or of PyTorch in the whole process. `cache_tokens` is the length of the key/value
    cache that has to fit next to the weights; `quantize` makes the linears int8.
    With a `group` this process holds its shard of the model, on the group's device. Raises `UsageError`,
    `DeviceError`, `ResourceError`, `WeightsError`.
    """
    start = time.perf_counter()
    if engine not in ("auto", "native", "torch"):
        raise UsageError(f"--engine {engine!r}: expected auto, native or torch")
    place = find_device(device) if group is None else Device(group.device.type, group.device.index)
    dtype_name, dtype_notes = choose_dtype(dtype, source, place)
    reason = _why_not_native(source, place, group)
    if kernels is not None:
        engine = "native"
    if engine == "native" and reason:
        raise ResourceError(f"--engine native: {reason}")
    if group is None:
        check_memory(source, place, dtype_name, cache_tokens, quantize=quantize)
    if reason is None and engine != "torch":
        if kernels is not None:
            force_kernels(kernels)
        loaded = _load_native(source, place, dtype_name, threads, quantize, seed)
    else:
        why = "" if engine == "torch" else reason or ""
        loaded = _load_torch(source, place, dtype_name, threads, quantize, seed, group, cache_tokens, why)
    is_int8 = source.plan is not None and source.plan.detected.is_int8
    notes = [*(source.plan.notes if source.plan else ()), *loaded.pop("notes")]
    if engine == "auto" and reason is not None and reason == kernels_error():
        notes.append(f"PyTorch decodes, more slowly: {reason}")
    if source.plan is None:
        notes.insert(
            0, f"the weights are random (seed {seed}), so the text is noise; --weights loads real ones"
        )
    return LoadedModel(
        device=place,
        dtype=f"int8 with {dtype_name}" if quantize or is_int8 else dtype_name,
        load_seconds=time.perf_counter() - start,
        notes=(*source.notes, *notes, *dtype_notes),
        group=group,
        get_tokenizer=lambda: source.tokenizer,
        **loaded,
    )


def _why_not_native(source: ModelSource, device: Device, group: ProcessGroup | None) -> str | None:
    """Return why the native kernels cannot decode here; None if they can."""
    if group is not None:
        return "several processes share the model in PyTorch"
    if device.type != "cpu":
        return f"the kernels are for CPUs, and the device is {device}"
    return unavailable_reason(source.config)


def _load_native(
    source: ModelSource, device: Device, dtype: str, threads: int | None, quantize: bool, seed: int
) -> dict[str, Any]:
    """Load for the native kernels; torch draws the random weights, and is not imported for others."""
    from gptcli.engine.native.engine import NativeEngine
    from gptcli.runtime import native_runtime

    drawn = None
    if source.plan is None:
        from gptcli.model.init import random_model

        drawn = random_model(source.config, seed).requires_grad_(False)
    config, parameters, notes = native_runtime.read_parameters(source, dtype, drawn, quantize=quantize)

    def make_model() -> GPTModel:
        from gptcli.runtime.torch_runtime import load_torch_model

        return load_torch_model(source, device, dtype, seed, quantize=quantize)[0]

    engine = NativeEngine(config, parameters, threads)
    weight_bytes, bytes_per_step = count_bytes(
        config, {name: array.nbytes for name, array in parameters.items()}
    )
    return {
        "config": config,
        "notes": notes,
        "weight_bytes": weight_bytes,
        "bytes_per_step": bytes_per_step,
        "element_bytes": 4,
        "n_threads": engine.n_threads,
        "engine": engine,
        "draft_model": engine.draft_model,
        "make_model": make_model,
    }


def _load_torch(
    source: ModelSource,
    device: Device,
    dtype: str,
    threads: int | None,
    quantize: bool,
    seed: int,
    group: ProcessGroup | None,
    cache_tokens: int,
    reason: str,
) -> dict[str, Any]:
    """Load for PyTorch, with CUDA graphs on a GPU; of several processes this one's shard."""
    import torch

    from gptcli.runtime import torch_runtime

    if threads is not None:
        torch.set_num_threads(threads)
    if group is not None:
        from gptcli.parallel.load import load_shard

        model, notes = load_shard(
            source, group, dtype=torch_runtime.DTYPES[dtype], seed=seed, cache_tokens=cache_tokens
        )
        model = torch_runtime.finish_model(model, dtype, quantize=quantize)
    else:
        model, notes = torch_runtime.load_torch_model(source, device, dtype, seed, quantize=quantize)
    n_bytes = [count_bytes(model.config, torch_runtime.bytes_by_name(model))]
    if group is not None:
        n_bytes = group.all_gather_object(n_bytes[0])
    return {
        "config": model.config,
        "notes": notes,
        "weight_bytes": sum(held for held, _ in n_bytes),
        "bytes_per_step": sum(read for _, read in n_bytes),
        "element_bytes": model.tok_emb.weight.element_size(),
        "n_threads": torch.get_num_threads(),
        "engine": torch_runtime.torch_engine(model, group, reason),
        "make_model": lambda: model,
    }
