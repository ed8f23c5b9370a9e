"""The activation functions as modules, by PyTorch's own function wherever it has one.

All take any shape and return the same shape and dtype. A new activation is a class here and a line in the
table of `gptcli/config/activations.py`.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.activations import ACTIVATIONS
from gptcli.config.model_config import ModelConfig


class ReLU(nn.Module):
    """max(0, x). Source: Nair & Hinton 2010."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class ExactGELU(nn.Module):
    """x·Φ(x), Φ the normal distribution function, by the error function. Source: Hendrycks & Gimpel 2016."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class GELU(nn.Module):
    """x·Φ(x) in its tanh form, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), as GPT-2 was trained.

    Source: Hendrycks & Gimpel 2016, section 2. Differs from the exact form by at most 4.73e-4, at x = ±2.70.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class SigmoidGELU(nn.Module):
    """x·σ(1.702·x), the coarser approximation of GELU. Source: Hendrycks & Gimpel 2016, section 2."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Sigmoid(nn.Module):
    """σ(x) = 1 / (1 + exp(-x)); the gate of GLU. Source: Dauphin et al. 2017."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


class Tanh(nn.Module):
    """tanh(x); the gate of an LSTM. Source: Dauphin et al. 2017, section 3."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


class SiLU(nn.Module):
    """x·σ(x), Swish with β = 1. Source: Elfwing et al. 2017; Hendrycks & Gimpel 2016."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Swish(nn.Module):
    """x·σ(β·x): x/2 for β = 0, SiLU for 1, ReLU for β → ∞. Source: Ramachandran et al. 2017, section 4.

    With `learn`, β is a scalar parameter that starts at `beta`.
    """

    def __init__(self, beta: float = 1.0, learn: bool = False) -> None:
        super().__init__()
        self.initial_beta = beta
        self.beta: float | nn.Parameter = nn.Parameter(torch.tensor(beta)) if learn else beta

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.beta * x)


class Identity(nn.Module):
    """x itself; the gate of the bilinear layer. Source: Mnih & Hinton 2007; Shazeer 2020."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def activation_class(name: str) -> Callable[[], nn.Module]:
    """Return the class of the activation `name`; raise `KeyError` for a name that the table does not have."""
    return cast("Callable[[], nn.Module]", globals()[ACTIVATIONS[name].class_name])


def build_activation(config: ModelConfig) -> nn.Module:
    """Return the activation that a config names."""
    if config.activation == "swish":
        return Swish(config.swish_beta, config.swish_learn_beta)
    return activation_class(config.activation)()
