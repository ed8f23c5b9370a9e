"""How gradients shrink with depth, without shortcuts and with: the tutorial's network, and a real GPT."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.model.activations import GELU
from gptcli.model.gpt import GPTModel, TransformerBlock
from gptcli.model.init import random_model


@dataclass(frozen=True)
class GradientRow:
    """Mean absolute gradient of one layer's weights, without shortcut connections and with them."""

    name: str
    without_shortcuts: float
    with_shortcuts: float


class ExampleDeepNeuralNetwork(nn.Module):
    """The tutorial's network: linears with GELU, with a shortcut around each whose input and output match."""

    def __init__(self, layer_sizes: Sequence[int], use_shortcut: bool) -> None:
        super().__init__()
        self.use_shortcut = use_shortcut
        pairs = pairwise(layer_sizes)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(a, b), GELU()) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:  # [B, last size]
        """Apply the network to x [B, first size]."""
        for layer in self.layers:
            y = layer(x)
            x = x + y if self.use_shortcut and x.shape == y.shape else y
        return x


def small_network(layer_sizes: Sequence[int], seed: int) -> list[GradientRow]:
    """Return the tutorial's demonstration: input 1, 0, -1, 1 …, target 0, squared error.

    The seed draws the weights, the same without shortcuts and with them.
    """
    columns = []
    for use_shortcut in (False, True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = ExampleDeepNeuralNetwork(layer_sizes, use_shortcut)
        x = torch.tensor([[(1.0, 0.0, -1.0)[i % 3] for i in range(layer_sizes[0])]])
        y = network(x)
        torch.autograd.backward(F.mse_loss(y, torch.zeros_like(y)))
        columns.append({name: p.grad for name, p in network.named_parameters() if "weight" in name})
    without, with_ = columns
    return [GradientRow(name, _mean_abs([without[name]]), _mean_abs([with_[name]])) for name in without]


def gpt_blocks(config: ModelConfig, ids: Sequence[int], seed: int) -> list[GradientRow]:
    """Return a row for the matrices of each block of a GPT with random weights.

    The loss is that of predicting the next token in `ids`, which must be two or more.
    """
    columns = []
    for use_shortcut in (False, True):
        model = random_model(config, seed)
        idx = torch.tensor([list(ids)])  # [1, T]
        with nullcontext() if use_shortcut else without_shortcuts(model):
            logits = model(idx[:, :-1])  # [1, T - 1, V]
        torch.autograd.backward(F.cross_entropy(logits[0], idx[0, 1:]))
        columns.append(
            [_mean_abs([p.grad for p in block.parameters() if p.ndim == 2]) for block in model.trf_blocks]
        )
    return [GradientRow(f"block {i}", *sizes) for i, sizes in enumerate(zip(*columns, strict=True))]


@contextmanager
def without_shortcuts(model: GPTModel) -> Iterator[None]:
    """Remove the shortcuts from a model's blocks inside the `with` block.

    Hooks give each norm the output of the sub-layer before it, and feed zeros to the shortcuts, so that they
    add nothing and pass no gradient. This is for evaluation mode: attention's output skips its dropout.
    """
    previous = torch.empty(0)  # the output of the last sub-layer, [B, T, C]

    def enter_block(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal previous
        previous, *others = inputs
        return torch.zeros_like(previous), *others

    def enter_norm(_module: nn.Module, _inputs: tuple[Any, ...]) -> Tensor:
        return previous

    def leave_attention(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        nonlocal previous
        previous = output
        return torch.zeros_like(output)

    hooks = []
    for block in model.trf_blocks:
        assert isinstance(block, TransformerBlock)
        hooks.append(block.register_forward_pre_hook(enter_block))
        hooks += [norm.register_forward_pre_hook(enter_norm) for norm in (block.norm1, block.norm2)]
        hooks.append(block.att.register_forward_hook(leave_attention))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mean_abs(gradients: Sequence[Tensor | None]) -> float:
    sizes = [gradient.abs().flatten() for gradient in gradients if gradient is not None]
    return float(torch.cat(sizes).mean())
