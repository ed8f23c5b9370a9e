"""int8 linears: their arithmetic, and the product that an engine sets in its place."""

import numpy as np
import pytest
import torch
from torch import nn

from gptcli.model import int8
from gptcli.model.int8 import Int8Linear, quantize_int8
from tests.decoding import decode_ids
from tests.engine.models import config
from tests.models import lively_model


def naive_product(linear: nn.Linear, x: torch.Tensor) -> np.ndarray:
    """Return the product in float64, by weights that are rounded row by row."""
    weight = linear.weight.detach().double().numpy()
    scale = np.abs(weight).max(axis=1, keepdims=True) / 127
    y = x.double().numpy() @ (np.rint(weight / scale) * scale).T
    return y if linear.bias is None else y + linear.bias.detach().double().numpy()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (2, 5, 24)], ids=str)
def test_the_product_is_that_of_the_rounded_weights(shape, bias, monkeypatch):
    torch.manual_seed(0)
    linear, x = nn.Linear(24, 70, bias=bias), torch.randn(shape)
    for widened in (int8.WIDENED_WEIGHTS, 24 * 32, 1):  # in one block, in three, row by row
        monkeypatch.setattr(int8, "WIDENED_WEIGHTS", widened)
        y = Int8Linear(linear)(x)
        assert y.shape == (*shape[:-1], 70)
        np.testing.assert_allclose(y, naive_product(linear, x), atol=1e-5)


def test_rounding_is_within_half_a_step_of_every_weight():
    torch.manual_seed(0)
    linear = torch.nn.Linear(50, 30)
    with torch.no_grad():
        linear.weight[3] = 0
        linear.weight[4] *= 1000
    quantized = Int8Linear(linear)
    error = (quantized.weight * quantized.scale[:, None] - linear.weight).abs()
    assert (error <= quantized.scale[:, None] / 2 * 1.0001).all()
    x = torch.randn(2, 50)
    expected = x @ (quantized.weight * quantized.scale[:, None]).T + linear.bias
    torch.testing.assert_close(quantized(x), expected, rtol=1e-5, atol=1e-4)
    assert quantized.weight.dtype == torch.int8


def test_every_linear_but_a_router_becomes_int8_and_keeps_its_bias():
    model = quantize_int8(lively_model(config(feed_forward="moe", n_experts=2, ffn_bias=True)))
    left = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    assert left == ["trf_blocks.0.ff.gate", "trf_blocks.1.ff.gate"]
    assert model.trf_blocks[0].att.W_query.bias is not None
    assert len(decode_ids(model, [1], 5)) == 5
