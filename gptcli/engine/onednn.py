"""Matrix products on a CPU by oneDNN, which PyTorch carries beside the library that its own `linear` calls.

In float32 that other library (MKL) reaches half the speed on processors that are not Intel's: 190 against 440
GFLOP/s for 512 tokens of GPT-2 small on two Zen 4 cores. The operator is PyTorch's own but not public, so it
is tried first, and `F.linear` stays in its place where it is not there.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.model.gpt import GPTModel

MANY_TOKENS = 64  # from here on copying a matrix takes less than it saves


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, sooner where it can be: [..., I] → [..., O] by `weight` [O, I], in rows or columns.

    A matrix that is cut out of a wider one, as a file's query, key and value are, is none for oneDNN: it is
    copied where that pays, and else left to `F.linear`.
    """
    is_plain = x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()
    if is_plain and not _is_whole(weight) and x.numel() >= MANY_TOKENS * x.shape[-1]:
        weight = weight.t().contiguous().t()
    if is_plain and _is_whole(weight) and is_there():
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return F.linear(x, weight, bias)


def _is_whole(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.t().is_contiguous()


@cache
def is_there() -> bool:
    """Whether the operator exists and multiplies right, in both orders of a matrix."""
    numbers = torch.linspace(-1, 1, 69).sin()
    x, weight, bias = numbers[:24].view(3, 8), numbers[24:64].view(5, 8), numbers[64:]
    expected = F.linear(x, weight, bias)
    try:
        by_rows = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        columns = weight.t().contiguous().t()
        by_columns = torch.ops.mkldnn._linear_pointwise(x, columns, bias, "none", [], "")
    except (AttributeError, TypeError, RuntimeError):
        return False
    return bool(
        torch.allclose(by_rows, expected, atol=1e-5) and torch.allclose(by_columns, expected, atol=1e-5)
    )


class OneDnnLinear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    @classmethod
    def over(cls, other: nn.Linear) -> "OneDnnLinear":
        """One with the parameters of `other`, not copies of them."""
        made = cls(other.in_features, other.out_features, bias=False, device="meta")
        made.weight, made.bias = other.weight, other.bias
        return made

    def forward(self, x: Tensor) -> Tensor:  # [..., I]
        """[..., I] → [..., O]."""
        return linear(x, self.weight, self.bias)


def use_onednn(model: GPTModel) -> None:
    """Have every linear of the model computed so; its parameters stay the same objects."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear.over(child))
