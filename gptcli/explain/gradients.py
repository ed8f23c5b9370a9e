"""How gradients shrink with depth, without shortcuts and with: the tutorial's network, and a real GPT."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    """The tutorial's: linears with GELU, each with a shortcut where input and output are of one width."""

    def __init__(self, layer_sizes: Sequence[int], use_shortcut: bool) -> None:
        super().__init__()
        self.use_shortcut = use_shortcut
        pairs = pairwise(layer_sizes)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(a, b), GELU()) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        """[B, first size] → [B, last size]."""
        for layer in self.layers:
            y = layer(x)
            x = x + y if self.use_shortcut and x.shape == y.shape else y
        return x


def small_network(layer_sizes: Sequence[int], seed: int) -> list[GradientRow]:
    """The demonstration: input 1, 0, -1, 1 …, target 0, squared error; the seed draws each network."""
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
    return [GradientRow(name, _mean_size([without[name]]), _mean_size([with_[name]])) for name in without]


def gpt_blocks(config: ModelConfig, ids: Sequence[int], seed: int) -> list[GradientRow]:
    """The same for a fresh GPT: next-token loss of `ids` (two or more), a row for each block's matrices."""
    columns = []
    for use_shortcut in (False, True):
        model = random_model(config, seed)
        idx = torch.tensor([list(ids)])  # [1, T]
        logits = _logits(model, idx[:, :-1], use_shortcut)  # [1, T - 1, V]
        torch.autograd.backward(F.cross_entropy(logits[0], idx[0, 1:]))
        columns.append(
            [_mean_size([p.grad for p in block.parameters() if p.ndim == 2]) for block in model.trf_blocks]
        )
    return [GradientRow(f"block {i}", *sizes) for i, sizes in enumerate(zip(*columns, strict=True))]


def _logits(model: GPTModel, idx: Tensor, use_shortcut: bool) -> Tensor:  # [1, T]
    """The model's forward pass, or what would be left of it without the shortcuts: [1, T, V]."""
    if use_shortcut:
        logits: Tensor = model(idx)
        return logits
    x = model.tok_emb(idx) + model.pos_emb(torch.arange(idx.shape[1]))  # [1, T, C]
    for layer, block in enumerate(model.trf_blocks):
        assert isinstance(block, TransformerBlock)
        x = block.att(block.norm1(x), None, None, layer)  # [1, T, C]
        x = block.ff(block.norm2(x))  # [1, T, C]
    bare: Tensor = model.out_head(model.final_norm(x))  # [1, T, V]
    return bare


def _mean_size(gradients: Sequence[Tensor | None]) -> float:
    sizes = [gradient.abs().flatten() for gradient in gradients if gradient is not None]
    return float(torch.cat(sizes).mean())
