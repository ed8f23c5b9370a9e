"""Matrix products on a CPU by oneDNN, which PyTorch carries beside the library that its own `linear` calls.

In float32 that other library (MKL) reaches half the speed on processors that are not Intel's: 190 against 440
GFLOP/s for 512 tokens of GPT-2 small on two Zen 5 cores. The operator is PyTorch's own but not public, so it
is tried first, and `F.linear` stays in its place where it is not there.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.model.activations import GELU, ExactGELU, Identity, ReLU, SiLU
from gptcli.model.feedforward import FeedForward
from gptcli.model.gpt import GPTModel
from gptcli.model.int8 import Int8Linear

# From so many tokens on, copying a matrix, or widening it to float32, takes less than it saves.
MANY_TOKENS, WIDENING_TOKENS = 64, 16


class Fused(NamedTuple):
    """An activation that oneDNN applies to a product while it is at hand; by our module and by its names."""

    module: nn.Module
    name: str
    algorithm: str


# Each stays within two units of rounding of the module, and takes a quarter of its time.
FUSED = {ReLU: ("relu", ""), GELU: ("gelu", "tanh"), ExactGELU: ("gelu", "none"), SiLU: ("swish", "")}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, then: Fused | None = None) -> Tensor:
    """`F.linear`, sooner where it can be: [..., I] → [..., O] by `weight` [O, I], in rows or columns.

    A matrix that is cut out of a wider one, as a file's query, key and value are, is none for oneDNN: it is
    copied where that pays, and else left to `F.linear`. float16 is widened where the processor has no
    products of it, which PyTorch then makes of single numbers.
    """
    is_ours = x.device.type == "cpu" and not torch.is_grad_enabled()
    n_tokens = x.numel() // x.shape[-1]
    if is_ours and x.dtype == torch.float16 and n_tokens >= WIDENING_TOKENS and not multiplies_half():
        return linear(x.float(), weight.float(), None if bias is None else bias.float(), then).half()
    is_plain = is_ours and x.dtype == torch.float32
    if is_plain and not _is_whole(weight) and n_tokens >= MANY_TOKENS:
        weight = weight.t().contiguous().t()
    if is_plain and _is_whole(weight) and is_there():
        name, algorithm = ("none", "") if then is None else then[1:]
        return _product(x, weight, bias, name, algorithm)
    y = F.linear(x, weight, bias)
    return y if then is None else then.module(y)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, name: str, algorithm: str) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return y


def _is_whole(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.t().is_contiguous()


@cache
def multiplies_half() -> bool:
    """Return whether the processor has products of float16 numbers, and oneDNN uses them."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    except (AttributeError, RuntimeError):
        return False


@cache
def is_there() -> bool:
    """Return whether the operator exists and computes right: both orders of a matrix, and each activation."""
    numbers = torch.linspace(-1, 1, 69).sin()
    x, weight, bias = numbers[:24].view(3, 8), numbers[24:64].view(5, 8), numbers[64:]
    columns = weight.t().contiguous().t()
    plain = F.linear(x, weight, bias)
    cases = [(weight, "none", "", plain), (columns, "none", "", plain)]
    cases += [(columns, *names, activation()(plain)) for activation, names in FUSED.items()]
    try:
        return all(
            torch.allclose(_product(x, matrix, bias, name, algorithm), expected, atol=1e-5)
            for matrix, name, algorithm, expected in cases
        )
    except (AttributeError, TypeError, RuntimeError):
        return False


class OneDnnLinear(nn.Linear):
    """`nn.Linear`, computed by `linear`, with the activation behind it if given."""

    then: Fused | None = None

    @classmethod
    def over(cls, other: nn.Linear) -> "OneDnnLinear":
        """Return one with the parameters of `other`, not copies of them."""
        made = cls(other.in_features, other.out_features, bias=False, device="meta")
        made.weight, made.bias = other.weight, other.bias
        return made

    def forward(self, x: Tensor) -> Tensor:  # [..., I]
        """[..., I] → [..., O]."""
        return linear(x, self.weight, self.bias, self.then)


class OneDnnProjection:
    """Query, key and value in one product, where a file has them side by side and ours are views of that."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take the whole matrix [3·C, C] and the whole bias [3·C]."""
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:  # [B, T, C]
        """[B, T, C] → [B, T, C] each, parts of one tensor."""
        return self.whole(x).chunk(3, dim=-1)

    def whole(self, x: Tensor) -> Tensor:  # [..., C]
        """[..., C] → [..., 3·C]."""
        return linear(x, self._weight, self._bias)


def neighbors(parts: Sequence[Tensor]) -> Tensor | None:
    """Matrices [O, I] by columns that lie side by side in one, as that one; None for any others."""
    n_rows, n_columns = sum(part.shape[0] for part in parts), parts[0].shape[1]
    ends = [part.storage_offset() + part.shape[0] for part in parts[:-1]]
    starts = [part.storage_offset() for part in parts[1:]]
    same = {part.untyped_storage().data_ptr() for part in parts}
    if len(same) == 1 and ends == starts and all(part.stride() == (1, n_rows) for part in parts):
        return torch.as_strided(parts[0], (n_rows, n_columns), (1, n_rows), parts[0].storage_offset())
    return None


def use_onednn(model: GPTModel) -> None:
    """Have every linear of the model computed so; its parameters stay the same objects."""
    for block in model.trf_blocks:
        att: Any = block.att
        linears = [att.W_query, att.W_key, att.W_value]
        if all(type(one) is nn.Linear for one in linears):
            weight = neighbors([one.weight.detach() for one in linears])
            biases = [one.bias.detach() for one in linears if one.bias is not None]
            if weight is not None:
                att.project = OneDnnProjection(weight, torch.cat(biases) if biases else None)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear.over(child))
            elif isinstance(child, Int8Linear):
                child.float_linear = linear
    for module in model.modules():
        if isinstance(module, FeedForward):
            _fuse_activation(module)


def _fuse_activation(feed_forward: FeedForward) -> None:
    """Leave the activation to the product before it, where oneDNN has it."""
    up, activation, _ = feed_forward.layers
    if isinstance(up, OneDnnLinear) and (names := FUSED.get(type(activation))) is not None:
        up.then = Fused(activation, *names)
        feed_forward.layers[1] = Identity()
