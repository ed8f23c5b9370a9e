"""int8 weights: a quarter of the bytes that decoding reads, and of the memory that float32 takes."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.model.arrays import SERIAL, PieceRunner
from gptcli.model.gpt import GPTModel
from gptcli.model.moe import MixtureOfExperts
from gptcli.model.quantize import to_int8
from gptcli.system.threads import default_threads

WIDENED_WEIGHTS = 1 << 22  # int8 weights that are converted to x's dtype at once
FEW_TOKENS = 8  # PyTorch's int8 operator is made for so few; for more a matrix product is faster


def quantize_weight(weight: Tensor, each: PieceRunner = SERIAL) -> tuple[Tensor, Tensor]:
    """Return `to_int8` of a weight [O, I], made on the host: rows [O, I] and scales [O], on its device."""
    stored = weight.detach().view(torch.uint16) if weight.dtype == torch.bfloat16 else weight.detach()
    rows, scale = to_int8(stored.cpu().numpy(), each=each)
    return torch.from_numpy(rows).to(weight.device), torch.from_numpy(scale).to(weight.device)


def int8_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:  # [n, O]
    """Multiply x [n, I] by int8 rows [O, I] with scales [O], using PyTorch's operator that reads int8."""
    y: Tensor = torch.ops.aten._weight_int8pack_mm(x, weight, scale.to(x.dtype))
    return y


@cache
def has_int8_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether PyTorch's int8 operator, which is not public, works on a device and is correct."""
    numbers = torch.linspace(-3, 3, 2 * 64 + 48 * 64, device=device).sin()
    x, (weight, scale) = numbers[:128].view(2, 64).to(dtype), quantize_weight(numbers[128:].view(48, 64))
    expected = x.float() @ (weight * scale[:, None]).t()
    try:
        y = int8_product(x, weight, scale)
    except (AttributeError, TypeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    return bool((y.float() - expected).abs().max() <= tolerance * expected.abs().max())


class Int8Linear(nn.Module):
    """y = scale ⊙ (Q·x) + bias, with Q in int8 and one scale a row; x and all sums keep their dtype."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, each: PieceRunner = SERIAL) -> None:
        """Quantize a float linear [O, I]."""
        super().__init__()
        weight, scale = quantize_weight(linear.weight, each)  # [O, I], [O]
        self._hold(weight, scale, None if linear.bias is None else linear.bias.detach())

    @classmethod
    def of(cls, weight: Tensor, scale: Tensor, bias: Tensor | None) -> "Int8Linear":
        """Return the layer with these int8 rows [O, I], their scales [O] and the bias [O]."""
        linear = cls.__new__(cls)
        nn.Module.__init__(linear)
        linear._hold(weight, scale, bias)
        return linear

    def _hold(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:  # [..., O]
        """Apply the layer to x [..., I]."""
        if x.is_cuda and x.numel() <= FEW_TOKENS * x.shape[-1] and has_int8_product(x.device, x.dtype):
            tokens = x.reshape(-1, x.shape[-1])  # [n, I]
            y = int8_product(tokens, self.weight, self.scale).view(*x.shape[:-1], -1)  # [..., O]
        else:
            y = self._widened_product(x) * self.scale.to(x.dtype)  # [..., O]
        return y if self.bias is None else y + self.bias

    def _widened_product(self, x: Tensor) -> Tensor:  # [..., O]
        """Multiply x [..., I] by the int8 rows, converted block by block.

        A head converted at once would be 150 MB, which the system has to hand out page by page.
        """
        blocks = torch.split(self.weight, max(1, WIDENED_WEIGHTS // self.weight.shape[1]))
        return torch.cat([F.linear(x, block.to(x.dtype)) for block in blocks], dim=-1)


def quantize_int8(model: GPTModel) -> GPTModel:
    """Replace every linear of the model by its int8 form, in place, and return the model.

    Routers stay in float: rounding would change which expert they choose. A head that shares the embedding's
    weight gets int8 weights of its own; the embedding stays, because a step reads one row of it.
    """
    with PieceRunner(default_threads()) as each:
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                is_router = isinstance(module, MixtureOfExperts) and name == "gate"
                if isinstance(child, nn.Linear) and not is_router:
                    setattr(module, name, Int8Linear(child, each))
    return model
