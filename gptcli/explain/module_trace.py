"""The module trace of a batch: every module in the order of execution, with its shapes and FLOPs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import Shape
from gptcli.model.attention import MultiHeadAttention
from gptcli.model.gpt import GPTModel
from gptcli.model.init import empty_model, random_model


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module, with the shapes of its input (`enters`) and of its output (`leaves`).

    `flops` counts the matrix products inside it (a multiply-add is two), `parameters` all that it holds.
    """

    name: str
    kind: str
    enters: Shape
    leaves: Shape
    parameters: int
    flops: int


@torch.inference_mode()
def trace_modules(model: GPTModel, ids: Sequence[Sequence[int]]) -> list[ModuleCall]:
    """Run ids (B rows of T) through the model and return the calls in order, a module after its children.

    The calls are those of the network that the config describes, with the model's float parameters: an engine
    may have replaced its layers by faster ones.
    """
    network = _network_of(model)
    calls: list[ModuleCall] = []
    own_flops: dict[str, int] = {}
    for name, module in network.named_modules():
        if name:
            module.register_forward_hook(_recorder(name, calls, own_flops))
    network(torch.tensor(ids, device=network.tok_emb.weight.device))
    return calls


def trace_modules_of_config(config: ModelConfig, ids: Sequence[Sequence[int]], seed: int) -> list[ModuleCall]:
    """Return the module trace of a model without weights: shapes alone, in no memory.

    A mixture of experts needs weights to choose experts, so it gets random ones from the seed.
    """
    return trace_modules(random_model(config, seed) if config.is_moe else empty_model(config), ids)


def _network_of(model: GPTModel) -> GPTModel:
    """Return the plain network of a model's config, which shares its parameters."""
    network = empty_model(model.config)
    network.load_state_dict(model.state_dict(), assign=True)
    network.tie_head()
    return network


def _recorder(
    name: str, calls: list[ModuleCall], own_flops: dict[str, int]
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    """Return a forward hook that appends each call of the module `name`."""

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        own_flops[name] = _own_flops(module, inputs[0], output)
        flops = sum(n for inner, n in own_flops.items() if inner == name or inner.startswith(name + "."))
        parameters = sum(p.numel() for p in module.parameters())
        enters, leaves = tuple(inputs[0].shape), tuple(output.shape)
        calls.append(ModuleCall(name, type(module).__name__, enters, leaves, parameters, flops))

    return record


def _own_flops(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Count the matrix products of a module itself, without those of its children."""
    if isinstance(module, nn.Linear):
        return 2 * module.in_features * prod(y.shape)
    if isinstance(module, MultiHeadAttention):
        B, T, C = x.shape
        return 4 * B * T * T * C  # Q·Kᵀ and the weighted sum of V, each 2·T·T·D in each head
    return 0
