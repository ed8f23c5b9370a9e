"""Loading into PyTorch: on any device, of any kind, or this process's shard of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gptcli.config.dtypes import COMPUTE_DTYPES
from gptcli.decode.engine import Engine
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.model.int8 import quantize_int8
from gptcli.system.device import Device, torch_device
from gptcli.weights.load import load_weights
from gptcli.weights.source import ModelSource

if TYPE_CHECKING:
    from gptcli.parallel.process_group import ProcessGroup

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in COMPUTE_DTYPES}


def load_torch_model(
    source: ModelSource, device: Device, dtype: str, seed: int, *, quantize: bool
) -> tuple[GPTModel, list[str]]:
    """Return the model on its device, and notes on its file."""
    if source.plan is not None:
        loaded = load_weights(source.plan, device=torch_device(device), dtype=DTYPES[dtype])
        model, notes = loaded.model, list(loaded.notes)
    else:
        # Drawn on the CPU in float32, then cast and moved: every device prints the same text.
        model, notes = random_model(source.config, seed).requires_grad_(False), []
        model = model.to(device=torch_device(device), dtype=DTYPES[dtype])
        model.tie_head()
    return finish_model(model, dtype, quantize=quantize), notes


def finish_model(model: GPTModel, dtype: str, *, quantize: bool) -> GPTModel:
    """Quantize the model if asked to, in place, and wait until it is on its device."""
    is_cpu = model.tok_emb.weight.device.type == "cpu"
    if is_cpu and dtype == "float16":
        _store_by_rows(model)
    if quantize:
        quantize_int8(model)
    if not is_cpu:
        torch.cuda.synchronize(model.tok_emb.weight.device)
    return model


def torch_engine(model: GPTModel, group: ProcessGroup | None, reason: str) -> Engine:
    """Return the engine for a model in PyTorch; on a CPU `reason` says why it is not the native one."""
    if group is not None:
        from gptcli.parallel.load import parallel_engine

        return parallel_engine(model, group)
    device = model.tok_emb.weight.device
    if device.type == "cpu":
        return TorchEngine(model, f"PyTorch ({reason})" if reason else "PyTorch")
    from gptcli.engine.cuda_graphs import CudaGraphEngine, CudaGraphRecorder

    return CudaGraphEngine(model, CudaGraphRecorder(device))


def bytes_by_name(model: GPTModel) -> dict[str, int]:
    """Return the bytes of every parameter and buffer; a tied head has none of its own."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.nbytes for name, tensor in named}


def _store_by_rows(model: GPTModel) -> None:
    """Copy matrices of half precision into rows: by columns a product on a CPU takes thirty times as long."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.contiguous()
