"""Small models for the tests of engines, and the native engine for a model in PyTorch."""

from pathlib import Path

import torch

from gptcli.engine.native.draft import quantize_parameters
from gptcli.engine.native.engine import NativeEngine
from gptcli.model.gpt import GPTModel
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from tests.models import save_huggingface, tiny_config

VOCABULARY, CONTEXT = 120, 64


def config(**changes):
    return tiny_config(**{"vocab_size": VOCABULARY, "context_length": CONTEXT} | changes)


def by_columns(model, folder: Path):
    """Return the model as a Hugging Face file holds it: matrices transposed, query, key and value in one."""
    loaded = load_weights(plan_load(save_huggingface(model, folder), []), device="cpu", dtype=torch.float32)
    return loaded.model


def native_engine(model: GPTModel, n_threads: int = 2, *, quantize: bool = False) -> NativeEngine:
    """Return the native kernels over the model's own parameters, in float32, bfloat16 or float16."""
    parameters = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        parameters[name] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    parameters |= {name: buffer.numpy() for name, buffer in model.named_buffers()}  # int8 rows and scales
    if quantize:
        parameters = quantize_parameters(parameters)
    return NativeEngine(model.config, parameters, n_threads)
