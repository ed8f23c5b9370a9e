"""The kernels against the model: every activation, layout and dtype, one to sixteen tokens."""

import pytest
import torch

from gptcli.decode.speculation import Speculator
from gptcli.engine.cpu import MAX_TOKENS, CpuEngine, unsupported
from gptcli.engine.products import ACTIVATION_CODES
from gptcli.engine.switch import Switch
from gptcli.model.cache import KVCache
from gptcli.model.int8 import quantize_int8
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from tests.decoding import decode_ids
from tests.engine.models import CONTEXT, VOCABULARY, by_columns, config
from tests.models import lively_model, save_huggingface


def assert_steps_equal(model, engine: CpuEngine, reference=None, tolerance: float = 2e-6) -> None:
    """Several steps of 1 to 16 tokens, from an empty cache on to the end of the context."""
    generator = torch.Generator().manual_seed(0)
    weight = model.tok_emb.weight
    cache = KVCache(model.config, 1, CONTEXT, dtype=weight.dtype)
    ids: list[int] = []
    for T in (1, 1, 2, 3, 4, 5, 7, MAX_TOKENS, 1, 8, 8, 8):
        new = torch.randint(0, VOCABULARY, (T,), generator=generator).tolist()
        ids += new
        with torch.inference_mode():
            ours = engine.logits(new, cache)
            theirs = (reference or model)(torch.tensor([ids]))[0, -T:].float()
        assert ours.shape == (T, VOCABULARY)
        assert cache.length == len(ids)
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()
    assert len(ids) == CONTEXT


class TestKernels:
    def test_give_only_the_last_logits_where_only_they_are_wanted(self):
        model = lively_model(config())
        engine, ids = CpuEngine(model, 2), [3, 1, 4, 1, 5]
        with torch.inference_mode():
            expected = model(torch.tensor([ids]))[0]
            for last in (None, 1, 2, 5):
                logits = engine.logits(ids, KVCache(model.config, 1, 5), last=last)
                assert len(logits) == (last or 5)
                assert (logits - expected[-len(logits) :]).abs().max() <= 2e-6 * expected.abs().max()

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"qkv_bias": False, "tie_embeddings": True},
            {"n_heads": 1, "n_layers": 3, "ffn_dim": 10},
            *({"activation": name} for name in sorted(ACTIVATION_CODES)),
        ],
        ids=str,
    )
    def test_equal_the_model_step_by_step(self, changes):
        model = lively_model(config(**changes))
        assert_steps_equal(model, CpuEngine(model, 2))

    @pytest.mark.parametrize(
        ("changes", "activation"),
        [({}, "gelu_new"), ({"tie_embeddings": True}, "gelu_new"), ({"activation": "gelu"}, "gelu")],
        ids=str,
    )
    def test_equal_it_on_the_columns_of_a_hugging_face_file(self, tmp_path, changes, activation):
        folder = save_huggingface(lively_model(config(**changes)), tmp_path, activation_function=activation)
        model = load_weights(plan_load(folder, []), device="cpu", dtype=torch.float32).model
        assert_steps_equal(model, CpuEngine(model, 2))

    def test_an_unbiased_norm_and_bias_free_feed_forwards(self):
        model = lively_model(config(norm_unbiased=True, ffn_bias=False))
        assert_steps_equal(model, CpuEngine(model, 1))

    def test_know_query_key_and_value_in_another_order_from_those_of_a_file(self, tmp_path):
        model = by_columns(lively_model(config()), tmp_path)
        for block in model.trf_blocks:
            att = block.att
            att.W_query, att.W_value = att.W_value, att.W_query
        assert_steps_equal(model, CpuEngine(model, 2))

    def test_read_the_weights_where_they_lie(self, tmp_path):
        model = by_columns(lively_model(config()), tmp_path)
        engine = CpuEngine(model, 2)
        assert_steps_equal(model, engine)
        with (
            torch.no_grad()
        ):  # a matrix that is changed in the model is changed in the engine: it is the same
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(1.5)
        assert_steps_equal(model, engine)

    @pytest.mark.parametrize(
        ("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)], ids=str
    )
    def test_half_precision_weights_with_float32_sums(self, dtype, tolerance):
        model = lively_model(config()).to(dtype)
        exact = lively_model(config()).to(dtype).float()  # the same weights; only the cache is coarser
        assert_steps_equal(model, CpuEngine(model, 2), reference=exact, tolerance=tolerance)

    def test_int8_weights(self):
        model = quantize_int8(lively_model(config()))
        assert_steps_equal(model, CpuEngine(model, 2))

    @pytest.mark.parametrize(
        "kind", [{"feed_forward": "swiglu"}, {"feed_forward": "moe"}, {"activation": "tanh"}]
    )
    def test_what_has_no_kernel_is_said_and_decoded_by_pytorch(self, kind):
        model = lively_model(config(**kind))
        assert unsupported(model)
        switch = Switch(model)
        switch.prepare(wait=True)
        assert "has no kernel" in switch.describe()
        plain = decode_ids(model, [1, 2], 9)
        assert decode_ids(model, [1, 2], 9, engine=switch, speculator=Speculator()) == plain
