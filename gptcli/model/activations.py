"""The activation functions, each a module picked by its config name."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GELU(nn.Module):
    """x·Φ(x) in its tanh form, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), as GPT-2 was trained.

    Source: Hendrycks & Gimpel 2016, "Gaussian Error Linear Units". Differs from the exact form by at most
    4.73e-4, at x = ±2.70. Any shape in, the same shape out.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class ExactGELU(nn.Module):
    """x·Φ(x) with the normal distribution's Φ by the error function. Any shape in, the same shape out."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class ReLU(nn.Module):
    """max(0, x). Any shape in, the same shape out."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu_tanh": GELU, "gelu": ExactGELU, "relu": ReLU}
