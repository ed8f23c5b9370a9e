"""int8 weights: a quarter of the bytes that decoding reads, and of the memory that float32 takes."""

from functools import cache

import torch
from torch import Tensor, nn

from gptcli.engine.onednn import linear
from gptcli.model.gpt import GPTModel
from gptcli.model.init import empty_model
from gptcli.model.moe import MixtureOfExperts

ROWS = 256  # are made int8 at once
WIDENED = 1 << 22  # weights that are turned into x's type at once
FEW_TOKENS = 8  # for so many the operator that reads int8 is made; for more a matrix product is better


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest int8 to float rows [O, I], and each row's scale [O]: its largest magnitude over 127.

    Source: Dettmers et al. 2022, "LLM.int8()", section 2.1 (absmax, row by row).
    """
    rows, scale = torch.empty(weight.shape, dtype=torch.int8, device=weight.device), []
    for first in range(0, len(weight), ROWS):  # by parts, so that it takes little memory
        part = weight[first : first + ROWS].float()  # [up to ROWS, I]
        scale.append(part.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127)
        rows[first : first + ROWS] = (part / scale[-1][:, None]).round_()
    return rows, torch.cat(scale)


def product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:  # [n, I]
    """[n, I] → [n, O] by int8 rows [O, I] with scales [O], in PyTorch's operator, which reads int8."""
    y: Tensor = torch.ops.aten._weight_int8pack_mm(x, weight, scale.to(x.dtype))
    return y


@cache
def product_is_there(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the operator, which is not public, exists on a device and multiplies right."""
    numbers = torch.linspace(-3, 3, 2 * 64 + 48 * 64, device=device).sin()
    x, (weight, scale) = numbers[:128].view(2, 64).to(dtype), to_int8(numbers[128:].view(48, 64))
    expected = x.float() @ (weight * scale[:, None]).t()
    try:
        y = product(x, weight, scale)
    except (AttributeError, TypeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    return bool((y.float() - expected).abs().max() <= tolerance * expected.abs().max())


class Int8Linear(nn.Module):
    """y = scale ⊙ (Q·x) + bias, with Q int8 and one scale a row; x and all sums stay as they are."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, rows: tuple[Tensor, Tensor] | None = None) -> None:
        """The nearest int8 to a float linear [O, I]; `rows` are those and their scales, if they are there."""
        super().__init__()
        weight, scale = rows or to_int8(linear.weight.detach())  # [O, I], [O]
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:  # [..., I]
        """[..., I] → [..., O]."""
        if x.is_cuda and x.numel() <= FEW_TOKENS * x.shape[-1] and product_is_there(x.device, x.dtype):
            y = product(x.reshape(-1, x.shape[-1]), self.weight, self.scale).view(
                *x.shape[:-1], -1
            )  # [..., O]
            return y if self.bias is None else y + self.bias
        # By parts: a head in float32 at once would be 150 MB, which the system has to hand out page by page.
        parts = torch.split(self.weight, max(1, WIDENED // self.weight.shape[1]))
        y = torch.cat([linear(x, part.to(x.dtype), None) for part in parts], dim=-1)  # [..., O]
        y = y * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias


def quantize_int8(model: GPTModel) -> GPTModel:
    """The model with every linear in int8, in place, but for routers: which expert is a matter of rounding.

    A head that shares the embedding's weight gets int8 of its own; the embedding, of which a step reads one
    row, stays.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            is_router = isinstance(module, MixtureOfExperts) and name == "gate"
            if isinstance(child, nn.Linear) and not is_router:
                setattr(module, name, Int8Linear(child))
    return model


def int8_copy(model: GPTModel, head: tuple[Tensor, Tensor] | None = None) -> GPTModel:
    """A model of its own with every linear in int8 and all else shared with `model`, which stays as it is.

    `head` is what `to_int8` makes of the head, where that is there already.
    """
    copy = empty_model(model.config)
    copy.load_state_dict(model.state_dict(), assign=True)
    copy.tie_head()
    if head is not None:
        copy.add_module("out_head", Int8Linear(copy.out_head, head))
    return quantize_int8(copy)
