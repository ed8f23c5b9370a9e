"""Matrix products on a CPU by oneDNN, which PyTorch carries beside the library that its own `linear` calls.

In float32 that other library (MKL) reaches half the speed on processors that are not Intel's: 190 against 440
GFLOP/s for 512 tokens of GPT-2 small on two Zen 4 cores. The operator is PyTorch's own but not public, so it
is tried first, and `F.linear` stays in its place where it is not there.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.model.gpt import GPTModel

# From so many tokens on, copying a matrix, or widening it to float32, takes less than it saves.
MANY_TOKENS, WIDENING_TOKENS = 64, 16


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear`, sooner where it can be: [..., I] → [..., O] by `weight` [O, I], in rows or columns.

    A matrix that is cut out of a wider one, as a file's query, key and value are, is none for oneDNN: it is
    copied where that pays, and else left to `F.linear`. float16 is widened where the processor has no
    products of it, which PyTorch then makes of single numbers.
    """
    is_ours = x.device.type == "cpu" and not torch.is_grad_enabled()
    n_tokens = x.numel() // x.shape[-1]
    if is_ours and x.dtype == torch.float16 and n_tokens >= WIDENING_TOKENS and not multiplies_half():
        return linear(x.float(), weight.float(), None if bias is None else bias.float()).half()
    is_plain = is_ours and x.dtype == torch.float32
    if is_plain and not _is_whole(weight) and n_tokens >= MANY_TOKENS:
        weight = weight.t().contiguous().t()
    if is_plain and _is_whole(weight) and is_there():
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return F.linear(x, weight, bias)


def _is_whole(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.t().is_contiguous()


@cache
def multiplies_half() -> bool:
    """Whether the processor has products of float16 numbers, and oneDNN uses them."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    except (AttributeError, RuntimeError):
        return False


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


class OneDnnProjection:
    """Query, key and value in one product, where a file has them side by side and ours are views of that."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Of the whole matrix [3·C, C] and the whole bias [3·C]."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:  # [B, T, C]
        """[B, T, C] → [B, T, C] each, parts of one tensor."""
        return linear(x, self._weight, self._bias).chunk(3, dim=-1)


def neighbours(parts: Sequence[Tensor]) -> Tensor | None:
    """Matrices [O, I] by columns that lie side by side in one, as that one; None for any others."""
    n_rows, I = sum(part.shape[0] for part in parts), parts[0].shape[1]
    ends = [part.storage_offset() + part.shape[0] for part in parts[:-1]]
    starts = [part.storage_offset() for part in parts[1:]]
    same = {part.untyped_storage().data_ptr() for part in parts}
    if len(same) == 1 and ends == starts and all(part.stride() == (1, n_rows) for part in parts):
        return torch.as_strided(parts[0], (n_rows, I), (1, n_rows), parts[0].storage_offset())
    return None


def use_onednn(model: GPTModel) -> None:
    """Have every linear of the model computed so; its parameters stay the same objects."""
    for block in model.trf_blocks:
        att: Any = block.att
        linears = [att.W_query, att.W_key, att.W_value]
        if all(type(one) is nn.Linear for one in linears):
            weight = neighbours([one.weight.detach() for one in linears])
            biases = [one.bias.detach() for one in linears if one.bias is not None]
            if weight is not None:
                att.project = OneDnnProjection(weight, torch.cat(biases) if biases else None)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear.over(child))
