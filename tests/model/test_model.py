"""The model against independent arithmetic: float64 formulas, torch's own layers, published text."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gptcli.config.activations import ACTIVATIONS
from gptcli.config.presets import resolve_options
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.activations import activation_class
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel, generate_text_simple
from gptcli.model.init import random_model
from gptcli.model.mask import causal_mask
from gptcli.model.norm import LayerNorm
from tests import naive
from tests.decoding import decode_ids, decode_tokens
from tests.models import lively_model, tiny_config

HELLO_I_AM = [15496, 11, 314, 716]
PUBLISHED_IDS = [27018, 24086, 47843, 30961, 42348, 7267]


def ids_of(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    return torch.randint(vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class TestPublished:
    def test_seed_123_gives_the_tutorials_text(self):
        model = random_model(resolve_options("gpt-124m", None, []).config, 123)
        with_cache = decode_ids(model, HELLO_I_AM, 6)
        tutorial = generate_text_simple(model, torch.tensor([HELLO_I_AM]), 6, 1024)
        assert with_cache == PUBLISHED_IDS
        assert tutorial.tolist() == [HELLO_I_AM + PUBLISHED_IDS]


class TestAgainstFormulas:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"tie_embeddings": True},
            {"qkv_bias": False, "ffn_bias": False},
            {"activation": "gelu", "norm_unbiased": True, "norm_eps": 1e-3},
            {"norm_bias": False, "attn_out_bias": False},
            {"norm_bias": False, "norm_unbiased": True},
            {"activation": "relu", "ffn_dim": 7, "n_heads": 1, "n_layers": 3},
            {"emb_dim": 25, "n_heads": 25},
        ],
        ids=str,
    )
    def test_logits_equal_a_naive_float64_model(self, changes):
        config = tiny_config(**changes)
        model = lively_model(config)
        ids = ids_of(11, config.vocab_size)
        state = {name: p.detach().numpy() for name, p in model.named_parameters()}
        expected = naive.naive_logits(config, state, ids)
        assert expected.std() > 0.1  # so that the comparison means something
        np.testing.assert_allclose(model(torch.tensor([ids]))[0].detach(), expected, atol=2e-5, rtol=1e-5)


class TestNorm:
    @pytest.mark.parametrize("width", [5, 768])
    @pytest.mark.parametrize("unbiased", [False, True])
    def test_equals_the_formula_in_float64(self, width, unbiased):
        config = tiny_config(emb_dim=width, n_heads=1, norm_unbiased=unbiased, norm_eps=1e-3)
        norm = LayerNorm(config)
        torch.nn.init.normal_(norm.scale)
        torch.nn.init.normal_(norm.shift)
        x = torch.randn(3, width)
        state = {
            "n.scale": norm.scale.detach().double().numpy(),
            "n.shift": norm.shift.detach().double().numpy(),
        }
        expected = naive.norm(config, state, "n", x.double().numpy())
        np.testing.assert_allclose(norm(x).detach(), expected, atol=2e-6)
        other = naive.norm(
            config.model_copy(update={"norm_unbiased": not unbiased}), state, "n", x.double().numpy()
        )
        assert np.abs(expected - other).max() > 1e-4  # the test can tell the two forms apart

    def test_biased_is_torchs_and_maps_0_2_to_minus_1_1(self):
        norm = LayerNorm(tiny_config(emb_dim=2, n_heads=1))
        x = torch.tensor([[0.0, 2.0]])
        torch.testing.assert_close(norm(x), torch.tensor([[-1.0, 1.0]]), atol=1e-5, rtol=0)
        torch.testing.assert_close(norm(x), torch.nn.LayerNorm(2)(x), atol=1e-6, rtol=0)


class TestActivations:
    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_equals_its_closed_form_in_float64(self, name):
        x = torch.cat([torch.linspace(-8, 8, 1001), torch.tensor([-100.0, -0.0, 0.0, 100.0])]).double()
        expected = [naive.ACTIVATIONS[name](value) for value in x.tolist()]
        torch.testing.assert_close(
            activation_class(name)()(x), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0
        )

    def test_the_two_gelus_differ_most_by_473e_6_at_270(self):
        x = torch.linspace(-5, 5, 100_001).double()
        gap = (activation_class("gelu_tanh")()(x) - activation_class("gelu")()(x)).abs()
        assert f"{gap.max():.2e}" == "4.73e-04"
        assert abs(abs(float(x[gap.argmax()])) - 2.70) < 0.01


class TestCache:
    @given(st.integers(1, 16), st.data())
    @settings(max_examples=40, deadline=None)
    def test_prefill_in_any_chunks_equals_one_pass(self, length, data):
        config = tiny_config()
        model = lively_model(config)
        ids = torch.tensor([ids_of(length, config.vocab_size), ids_of(length, config.vocab_size, seed=1)])
        cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)))) - {length})
        cache, parts = KVCache(config, 2, length), []
        for start, end in zip([0, *cuts], [*cuts, length], strict=True):
            parts.append(model(ids[:, start:end], cache))
        assert cache.length == length
        torch.testing.assert_close(torch.cat(parts, 1), model(ids), atol=1e-5, rtol=0)

    def test_truncate_removes_tokens(self):
        config = tiny_config()
        model = lively_model(config)
        right, wrong = ids_of(10, config.vocab_size), ids_of(10, config.vocab_size, seed=5)
        cache = KVCache(config, 1, 16)
        model(torch.tensor([right[:6] + wrong[6:]]), cache)
        cache.truncate(6)
        logits = model(torch.tensor([right[6:]]), cache)
        torch.testing.assert_close(logits, model(torch.tensor([right]))[:, 6:], atol=1e-5, rtol=0)
        for length in (-1, 11):
            with pytest.raises(ValueError, match="cannot truncate"):
                cache.truncate(length)

    def test_200_tokens_are_the_same_with_and_without_a_cache(self):
        config = tiny_config(context_length=256, vocab_size=500)
        model = lively_model(config)
        prompt = ids_of(9, 500)
        cached = decode_ids(model, prompt, 200)
        uncached = decode_ids(model, prompt, 200, use_cache=False)
        simple = generate_text_simple(model, torch.tensor([prompt]), 200, 256)[0, 9:].tolist()
        assert cached == uncached == simple
        assert len(set(cached)) > 20

    def test_near_ties_are_decided_alike_with_and_without_a_cache(self, monkeypatch):
        config = tiny_config(context_length=64, vocab_size=200)
        model = lively_model(config)
        with torch.no_grad():  # every token has a twin, up to rounding
            model.out_head.weight[100:] = model.out_head.weight[:100] * (1 + 1e-7)
        real = KVCache.append

        def rounded(cache: KVCache, layer: int, keys: torch.Tensor, values: torch.Tensor):
            return real(cache, layer, keys * (1 + 2e-7), values * (1 - 2e-7))

        monkeypatch.setattr(KVCache, "append", rounded)
        differed = 0
        for seed in range(5):
            prompt = ids_of(4, 200, seed)
            cached = decode_ids(model, prompt, 50)
            uncached = decode_ids(model, prompt, 50, use_cache=False)
            assert cached == uncached
            with monkeypatch.context() as patch:
                patch.setattr(TorchEngine, "near_tie_tolerance", 0.0)
                differed += decode_ids(model, prompt, 50) != uncached
        assert differed  # the tolerance is what makes them equal

    def test_past_the_context_the_window_slides_as_in_the_tutorial(self):
        config = tiny_config(context_length=16, vocab_size=500)
        model = lively_model(config)
        for prompt in (ids_of(5, 500), ids_of(16, 500), ids_of(50, 500)):
            simple = generate_text_simple(model, torch.tensor([prompt]), 40, 16)[0, len(prompt) :].tolist()
            for use_cache in (True, False):
                steps = decode_tokens(model, prompt, 40, use_cache=use_cache)
                assert [s.token_id for s in steps] == simple

    def test_more_tokens_than_the_context_length_are_an_error(self):
        model = random_model(tiny_config(), 0)
        with pytest.raises(ValueError, match="17 tokens exceed the context length 16"):
            model(torch.zeros(1, 17, dtype=torch.long))

    @pytest.mark.parametrize(("T", "S"), [(2, 3), (3, 7), (5, 6)])
    def test_each_token_attends_to_itself_and_to_earlier_tokens(self, T, S):
        mask = causal_mask(T, S, torch.device("cpu"))
        expected = [[s <= S - T + t for s in range(S)] for t in range(T)]
        assert mask.tolist() == expected
        # None: attention uses SDPA's own mask, which is right for these shapes.
        assert causal_mask(1, S, torch.device("cpu")) is causal_mask(S, S, torch.device("cpu")) is None


class TestInitialization:
    def test_a_fresh_tied_model_has_the_loss_of_a_uniform_distribution(self):
        config = resolve_options("gpt2-small", None, ["n_layers=3"]).config
        model = random_model(config, 123)
        ids = torch.tensor([ids_of(129, config.vocab_size)])
        with torch.no_grad():
            loss = F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        assert abs(loss.item() - math.log(config.vocab_size)) < 0.5

    def test_a_tied_model_is_initialized_like_gpt2(self):
        config = tiny_config(emb_dim=192, n_layers=8, tie_embeddings=True, vocab_size=1000)
        model = random_model(config, 1)
        assert model.out_head.weight is model.tok_emb.weight
        block = model.trf_blocks[3]
        for weight, std in (
            (model.tok_emb.weight, 0.02),
            (block.att.W_query.weight, 0.02),
            (block.ff.layers[0].weight, 0.02),
            (block.att.out_proj.weight, 0.02 / 4),
            (block.ff.layers[2].weight, 0.02 / 4),
        ):
            assert weight.std().item() == pytest.approx(std, rel=0.05)
        assert not any(p.any() for name, p in model.named_parameters() if name.endswith(("bias", "shift")))
        assert all((p == 1).all() for name, p in model.named_parameters() if name.endswith("scale"))

    def test_an_empty_model_draws_no_random_numbers_and_imports_nothing_for_them(self):
        code = """
import sys, torch
from gptcli.model.init import empty_model
from tests.models import tiny_config
before = torch.get_rng_state()
model = empty_model(tiny_config())
assert torch.equal(torch.get_rng_state(), before)
assert {p.device.type for p in model.parameters()} == {"meta"}
assert "torch._dynamo" not in sys.modules
"""
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=120)

    @pytest.mark.parametrize("tied", [True, False])
    def test_a_seed_decides_all_weights_and_leaves_the_global_generator_alone(self, tied):
        config = tiny_config(tie_embeddings=tied)
        torch.manual_seed(7)
        before = torch.get_rng_state()
        first, second, other = random_model(config, 1), random_model(config, 1), random_model(config, 2)
        assert torch.equal(torch.get_rng_state(), before)
        ids = torch.tensor([[1, 2, 3]])
        assert torch.equal(first(ids), second(ids))
        assert not torch.equal(first(ids), other(ids))


def test_dropout_is_active_only_in_training():
    model = GPTModel(tiny_config(drop_rate=0.5))
    ids = torch.tensor([[1, 2, 3, 4]])
    assert not torch.equal(model.train()(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))
    none = GPTModel(tiny_config(drop_rate=0.0)).train()
    assert torch.equal(none(ids), none(ids))


@pytest.mark.parametrize(
    "kind", [{}, {"feed_forward": "swiglu"}, {"feed_forward": "moe", "n_experts": 4}, {"n_layers": 1}]
)
def test_last_only_gives_the_hidden_state_of_the_last_token(kind):
    model = lively_model(tiny_config(**kind))
    ids = torch.randint(0, 97, (2, 12))
    with torch.inference_mode():
        whole = model.hidden(ids)
        assert (model.hidden(ids, last_only=True) - whole[:, -1:]).abs().max() < 1e-5
        cache = model.new_cache(2, 16)
        for start, end in ((0, 5), (5, 11), (11, 12)):
            part = model.hidden(ids[:, start:end], cache, last_only=True)
            assert (part - whole[:, end - 1 : end]).abs().max() < 1e-5


def test_attention_weights_drop_out_in_training():
    model = GPTModel(tiny_config(drop_rate=0.5)).train()
    attention, x = model.trf_blocks[0].att, torch.randn(1, 6, 24)
    assert not torch.equal(attention(x, None, None, 0), attention(x, None, None, 0))


def test_every_parameter_gets_a_gradient():
    model = GPTModel(tiny_config(drop_rate=0.0)).train()
    F.cross_entropy(model(torch.tensor([[1, 2, 3]]))[0], torch.tensor([2, 3, 4])).backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0
        for n, p in model.named_parameters()
        if "W_key.bias" not in n
    )
