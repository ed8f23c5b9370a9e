"""Parameter counts: the published numbers, and equality with the model that torch builds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gptcli.config.choices import GATES
from gptcli.config.cost import (
    count_active_parameters,
    count_parameters,
    flops,
    kv_bytes_per_token,
    parameter_variants,
    parameters_by_component,
)
from gptcli.config.model_config import build_config
from gptcli.config.presets import preset_names, resolve_options
from gptcli.config.shapes import component_of, parameter_shapes
from gptcli.model.init import empty_model
from tests.models import tiny_config

# tied, untied, both again without qkv bias, key/value bytes per token; as published by OpenAI and others.
PUBLISHED = {
    "gpt2-small": (124_439_808, 163_037_184, 124_412_160, 163_009_536, 73_728),
    "gpt2-medium": (354_823_168, 406_286_336, 354_749_440, 406_212_608, 196_608),
    "gpt2-large": (774_030_080, 838_359_040, 773_891_840, 838_220_800, 368_640),
    "gpt2-xl": (1_557_611_200, 1_638_022_400, 1_557_380_800, 1_637_792_000, 614_400),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_the_published_counts(preset):
    config = resolve_options(preset, None, []).config
    counts = parameter_variants(config)
    names = ("tied", "untied", "tied_without_qkv_bias", "untied_without_qkv_bias")
    assert (*(counts[name] for name in names), kv_bytes_per_token(config)) == PUBLISHED[preset]
    assert count_parameters(config) == counts["tied"]


def test_the_tutorials_model_is_163_million():
    assert count_parameters(resolve_options("gpt-124m", None, []).config) == 163_009_536


def assert_shapes_are_the_models(config):
    model = empty_model(config)
    assert parameter_shapes(config) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert count_parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("preset", preset_names())
def test_shapes_equal_the_models_for_every_preset(preset):
    assert_shapes_are_the_models(resolve_options(preset, None, []).config)


configs = st.fixed_dictionaries(
    {
        "vocab_size": st.integers(1, 300),
        "context_length": st.integers(1, 64),
        "n_heads": st.integers(1, 5),
        "n_layers": st.integers(1, 4),
        "drop_rate": st.just(0.0),
        "qkv_bias": st.booleans(),
        "tie_embeddings": st.booleans(),
        "feed_forward": st.sampled_from(["mlp", *GATES, "moe"]),
    },
    optional={
        "ffn_dim": st.integers(1, 200),
        "ffn_bias": st.booleans(),
        "activation": st.sampled_from(["gelu_tanh", "gelu", "relu", "swish"]),
    },
)
mixtures = st.fixed_dictionaries(
    {
        "expert_feed_forward": st.sampled_from(["mlp", *GATES]),
        "n_experts_per_token": st.integers(1, 3),
        "n_shared_experts": st.integers(0, 2),
    }
)


@given(configs, st.integers(1, 20), mixtures, st.integers(0, 3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_shapes_equal_the_models_for_random_configs(values, head_dim, mixture, more_experts, learn):
    if values["feed_forward"] == "moe":
        values |= mixture | {"n_experts": mixture["n_experts_per_token"] + more_experts}
    if values.get("activation") == "swish":
        values |= {"swish_learn_beta": learn}
    assert_shapes_are_the_models(build_config(values | {"emb_dim": head_dim * values["n_heads"]}, "random"))


@pytest.mark.parametrize(("emb_dim", "ffn_dim"), [(4096, 11008), (5120, 13824), (768, 2048), (1600, 4352)])
def test_the_gated_width_is_llamas(emb_dim, ffn_dim):
    config = tiny_config(feed_forward="swiglu", emb_dim=emb_dim, n_heads=2)
    assert config.ffn_dim == ffn_dim
    assert tiny_config(feed_forward="swiglu", ffn_dim=100).ffn_dim == 100  # an explicit width is not scaled
    wider = {"ffn_dim_multiplier": 1.3, "ffn_multiple_of": 1024}
    assert tiny_config(feed_forward="swiglu", emb_dim=4096, n_heads=2, **wider).ffn_dim == 14336


def test_a_mixture_counts_all_experts_for_memory_and_the_active_ones_for_flops():
    config = tiny_config(feed_forward="moe", n_experts=5, n_experts_per_token=2, n_shared_experts=1)
    C, F, L, V = 24, config.ffn_dim, 2, 97
    expert, router = 3 * C * F, 5 * C
    assert parameters_by_component(config)["feed_forward"] == L * (6 * expert + router)
    assert count_parameters(config) - count_active_parameters(config) == L * 3 * expert
    assert flops(config).forward_per_token_without_attention == 2 * (
        L * (4 * C * C + 3 * expert + router) + C * V
    )
    dense = tiny_config()
    assert count_active_parameters(dense) == count_parameters(dense)


def test_components_add_up_and_a_tied_head_counts_zero():
    for tied in (True, False):
        config = tiny_config(tie_embeddings=tied)
        parts = parameters_by_component(config)
        assert sum(parts.values()) == count_parameters(config)
        assert parts["output_head"] == (0 if tied else 97 * 24)
        assert {component_of(name) for name in parameter_shapes(config)} <= set(parts)


def test_flops_count_every_matmul_with_a_tied_head_and_with_its_own():
    tied, untied = tiny_config(tie_embeddings=True), tiny_config(tie_embeddings=False)
    assert flops(tied) == flops(untied)
    C, F, L, V, S = 24, 96, 2, 97, 16
    by_hand = 2 * (L * (4 * C * C + 2 * C * F) + C * V)
    assert flops(tied).forward_per_token_without_attention == by_hand
    assert flops(tied).forward_per_token == by_hand + 4 * L * S * C
