"""The journey of a batch: every module in the order of execution, its shapes and its work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gptcli.config.shapes import Shape
from gptcli.model.attention import MultiHeadAttention
from gptcli.model.gpt import GPTModel


@dataclass(frozen=True)
class Stop:
    """One module as the batch passes it.

    `flops` are those of the matrix products inside (a multiply-add is two), `parameters` all that it holds.
    """

    name: str
    kind: str
    enters: Shape
    leaves: Shape
    parameters: int
    flops: int


@torch.inference_mode()
def journey(model: GPTModel, idx: Tensor) -> list[Stop]:
    """Run ids [B, T] through the model, on the meta device if need be; a stop a module, parents last."""
    stops: list[Stop] = []
    work: dict[str, int] = {}
    hooks = [
        module.register_forward_hook(_passing(name, stops, work), with_kwargs=False)
        for name, module in model.named_modules()
        if name
    ]
    try:
        model(idx)
    finally:
        for hook in hooks:
            hook.remove()
    return stops


def journey_of(model: GPTModel, ids: Sequence[Sequence[int]]) -> list[Stop]:
    """`journey` for ids as lists, put where the model is."""
    return journey(model, torch.tensor(ids, device=model.tok_emb.weight.device))


def _passing(
    name: str, stops: list[Stop], work: dict[str, int]
) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def passed(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        work[name] = _own_flops(module, inputs[0], output)
        flops = sum(n for inner, n in work.items() if inner == name or inner.startswith(name + "."))
        parameters = sum(p.numel() for p in module.parameters())
        stops.append(
            Stop(name, type(module).__name__, tuple(inputs[0].shape), tuple(output.shape), parameters, flops)
        )

    return passed


def _own_flops(module: nn.Module, x: Tensor, y: Tensor) -> int:
    """Matrix products of this module itself, not of those inside it."""
    if isinstance(module, nn.Linear):
        return 2 * module.in_features * prod(y.shape)
    if isinstance(module, MultiHeadAttention):
        B, T, C = x.shape
        return 4 * B * T * T * C  # Q·Kᵀ and the weighted sum of V, each 2·T·T·D in each head
    return 0
