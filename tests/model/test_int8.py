"""The int8 linear: its rounding, and which linears become one."""

import torch

from gptcli.model.int8 import Int8Linear, quantize_int8
from tests.decoding import decode_tokens
from tests.engine.models import config
from tests.models import lively_model


class TestInt8:
    def test_is_within_half_a_step_of_every_weight(self):
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

    def test_takes_every_linear_but_a_router_and_keeps_biases(self):
        model = quantize_int8(lively_model(config(feed_forward="moe", n_experts=2, ffn_bias=True)))
        left = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        assert left == ["trf_blocks.0.ff.gate", "trf_blocks.1.ff.gate"]
        assert model.trf_blocks[0].att.W_query.bias is not None
        assert len(list(decode_tokens(model, [1], 5))) == 5
