"""Feed-forwards and activations, against closed forms, naive loops and the layers of `transformers`."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, MixtralConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from gptcli.config.activations import ACTIVATIONS
from gptcli.config.choices import GATES
from gptcli.config.model_config import build_config
from gptcli.config.presets import preset_names, resolve_options, sources_from_options
from gptcli.errors import ConfigError, WeightsError
from gptcli.model import activations
from gptcli.model.activations import Swish, activation_class
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.model.moe import MixtureOfExperts, build_feed_forward, load_balancing_loss, router_scores
from gptcli.weights.layouts import HUGGINGFACE
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.save import lay_out, save_model
from tests import naive
from tests.decoding import decode_ids
from tests.models import lively_model, save_tutorial, tiny_config, tiny_values

KINDS = {
    "relu": {"activation": "relu"},
    **{kind: {"feed_forward": kind} for kind in GATES},
    "glu tanh without bias": {"feed_forward": "glu", "activation": "tanh", "ffn_bias": False},
    "swiglu with bias": {"feed_forward": "swiglu", "ffn_bias": True, "ffn_dim": 10},
    "swish": {"activation": "swish", "swish_beta": 1.7},
    "learned swish": {
        "feed_forward": "glu",
        "activation": "swish",
        "swish_beta": 0.5,
        "swish_learn_beta": True,
    },
    "moe": {"feed_forward": "moe", "ffn_dim": 12},
    "moe of one": {"feed_forward": "moe", "ffn_dim": 12, "n_experts": 3, "n_experts_per_token": 1},
    "moe mlp shared": {
        "feed_forward": "moe",
        "expert_feed_forward": "mlp",
        "ffn_dim": 12,
        "n_experts": 4,
        "n_experts_per_token": 3,
        "n_shared_experts": 2,
    },
    "moe glu bias shared": {
        "feed_forward": "moe",
        "expert_feed_forward": "glu",
        "ffn_dim": 12,
        "n_shared_experts": 1,
        "norm_unbiased": True,
    },
}
every_kind = pytest.mark.parametrize("keys", KINDS.values(), ids=KINDS)


def assert_same_parameters(model: GPTModel, other: GPTModel) -> None:
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class TestActivations:
    def test_the_config_names_what_the_model_has(self):
        named = {activation.class_name for activation in ACTIVATIONS.values()}
        modules = {
            name
            for name, value in vars(activations).items()
            if isinstance(value, type) and value.__module__ == activations.__name__
        }
        assert named == modules

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_extremes_and_zeros(self, name):
        x = torch.tensor([-100.0, -0.0, 0.0, 100.0, math.nan], dtype=torch.float64)
        y = activation_class(name)()(x)
        expected = [naive.ACTIVATIONS[name](value) for value in x[:4].tolist()]
        torch.testing.assert_close(y[:4], torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)
        assert y[4].isnan()

    @pytest.mark.parametrize("name", ACTIVATIONS)
    @pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-2)])
    def test_random_values_in_other_dtypes(self, name, dtype, atol):
        x = (3 * torch.randn(500, generator=torch.Generator().manual_seed(0))).to(dtype)
        y = activation_class(name)()(x)
        assert y.dtype == dtype
        expected = torch.tensor([naive.ACTIVATIONS[name](value) for value in x.tolist()])
        torch.testing.assert_close(y.float(), expected, atol=atol, rtol=1e-2 if atol > 1e-3 else 1e-5)

    @pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"relu"}))
    def test_derivatives_equal_finite_differences(self, name):
        x = torch.linspace(-5, 5, 41, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(activation_class(name)(), x)

    def test_values_equal_pytorchs_where_it_has_the_function(self):
        x = torch.linspace(-9, 9, 1001)
        for name, function in {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh}.items():
            assert torch.equal(activation_class(name)()(x), function(x))
        assert torch.equal(activation_class("gelu_tanh")()(x), F.gelu(x, approximate="tanh"))

    def test_swish_goes_from_half_x_to_relu(self):
        x = torch.linspace(-3, 3, 61)
        torch.testing.assert_close(Swish(0.0)(x), x / 2)
        torch.testing.assert_close(Swish(1.0)(x), F.silu(x))
        torch.testing.assert_close(Swish(1e4)(x), F.relu(x), atol=1e-4, rtol=0)

    def test_a_learned_beta_is_one_parameter_per_layer_with_a_gradient(self):
        model = GPTModel(tiny_config(**KINDS["learned swish"]))
        betas = [p for name, p in model.named_parameters() if name.endswith("beta")]
        assert [beta.item() for beta in betas] == [0.5, 0.5]
        model(torch.tensor([[1, 2, 3]])).square().sum().backward()
        assert all(beta.grad.abs() > 0 for beta in betas)


class TestConfig:
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({"feed_forward": "glu"}, ("sigmoid", True)),
            ({"feed_forward": "swiglu"}, ("silu", False)),
            ({"feed_forward": "geglu", "activation": "gelu_tanh"}, ("gelu_tanh", False)),
            ({"feed_forward": "swiglu", "ffn_bias": True}, ("silu", True)),
            ({"feed_forward": "moe"}, ("silu", False)),
            ({"feed_forward": "moe", "expert_feed_forward": "mlp"}, ("gelu_tanh", True)),
            ({"activation": "gelu_new"}, ("gelu_tanh", True)),
            ({"activation": "gelu_pytorch_tanh"}, ("gelu_tanh", True)),
            ({"activation": "gelu_fast"}, ("gelu_tanh", True)),
            ({"activation": "quick_gelu"}, ("gelu_sigmoid", True)),
        ],
    )
    def test_defaults_of_each_kind(self, keys, expected):
        config = tiny_config(**keys)
        assert (config.activation, config.ffn_bias) == expected

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"activation": "swiglu"}, "activation 'swiglu' is a feed-forward: write feed_forward: swiglu"),
            ({"feed_forward": "moe", "n_experts": 1}, "n_experts_per_token 2 is more than n_experts 1"),
            ({"n_experts": 4}, "n_experts needs feed_forward: moe"),
            ({"swish_beta": 2.0}, "swish_beta needs activation: swish"),
            ({"activation": "swish", "swish_beta": math.inf}, "swish_beta must be a finite number"),
            ({"ffn_dim_multiplier": 1.3}, "ffn_dim_multiplier needs a gated feed_forward"),
        ],
    )
    def test_what_does_not_fit_together_is_refused(self, keys, message):
        with pytest.raises(ConfigError) as error:
            build_config(tiny_values(**keys), "x")
        assert message in str(error.value)

    def test_the_message_names_the_flag(self, cli):
        result = cli("params", "--set", "activation=swiglu")
        assert result.status == 2
        assert "write feed_forward: swiglu" in result.err


class TestAgainstReferences:
    @every_kind
    @pytest.mark.parametrize("tied", [True, False])
    def test_logits_equal_a_naive_float64_model(self, keys, tied):
        config = tiny_config(**keys, tie_embeddings=tied)
        model = lively_model(config)
        ids = torch.randint(97, (9,), generator=torch.Generator().manual_seed(1)).tolist()
        state = {name: p.detach().numpy() for name, p in model.named_parameters()}
        expected = naive.naive_logits(config, state, ids)
        assert expected.std() > 0.1
        np.testing.assert_allclose(model(torch.tensor([ids]))[0].detach(), expected, atol=5e-5, rtol=1e-5)

    def test_swiglu_equals_llamas(self):
        theirs = LlamaMLP(LlamaConfig(hidden_size=24, intermediate_size=40, num_attention_heads=4))
        ours = build_feed_forward(tiny_config(feed_forward="swiglu", ffn_dim=40))
        ours.load_state_dict(theirs.state_dict())  # by the same names
        x = torch.randn(2, 5, 24)
        torch.testing.assert_close(ours(x), theirs(x), atol=1e-6, rtol=0)

    def test_a_mixture_equals_mixtrals(self):
        hf = MixtralConfig(hidden_size=24, intermediate_size=40, num_local_experts=8, num_experts_per_tok=2)
        theirs = MixtralSparseMoeBlock(hf).eval()
        ours = MixtureOfExperts(tiny_config(feed_forward="moe", ffn_dim=40))
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)) / 4)
            ours.gate.weight.copy_(theirs.gate.weight)
            for e in range(8):
                gate, up = theirs.experts.gate_up_proj[e].chunk(2)
                ours.fc1[e].weight.copy_(gate)
                ours.fc2[e].weight.copy_(up)
                ours.fc3[e].weight.copy_(theirs.experts.down_proj[e])
            x = torch.randn(3, 7, 24)
            expected = theirs(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=0)


class TestDecoding:
    @every_kind
    def test_cached_uncached_and_batched_are_the_same(self, keys):
        config = tiny_config(**keys, context_length=48, vocab_size=300)
        model = lively_model(config)
        prompts = torch.randint(300, (3, 6), generator=torch.Generator().manual_seed(2))
        batched = model(prompts)
        for row, prompt in zip(batched, prompts.tolist(), strict=True):
            torch.testing.assert_close(model(torch.tensor([prompt]))[0], row, atol=1e-5, rtol=0)
            cached = decode_ids(model, prompt, 40)
            assert cached == decode_ids(model, prompt, 40, use_cache=False)

    def test_other_feed_forwards_do_not_change_the_tutorials_random_weights(self):
        torch.manual_seed(5)
        linear = torch.nn.Linear(24, 96)
        torch.manual_seed(5)
        assert torch.equal(build_feed_forward(tiny_config()).layers[0].weight, linear.weight)


class TestMixture:
    def test_each_token_passes_only_through_its_experts(self):
        mixture = MixtureOfExperts(tiny_config(feed_forward="moe", ffn_dim=12, n_experts=6))
        seen = []
        for expert in mixture.fc1:
            expert.register_forward_hook(lambda _expert, inputs, _output: seen.append(len(inputs[0])))
        mixture(torch.randn(2, 5, 24))
        assert sum(seen) == 2 * 5 * 2
        seen.clear()
        mixture(torch.randn(1, 1, 24))
        assert seen == [1, 1]

    @pytest.mark.parametrize("k", [1, 2])
    def test_the_router_gets_a_gradient(self, k):
        mixture = MixtureOfExperts(tiny_config(feed_forward="moe", ffn_dim=12, n_experts_per_token=k))
        mixture(torch.randn(2, 5, 24)).square().sum().backward()
        assert mixture.gate.weight.grad.abs().max() > 1e-6

    def test_expert_weights_sum_to_one_or_are_the_switch_transformers_probability(self):
        scores = torch.randn(7, 8)
        two = MixtureOfExperts(tiny_config(feed_forward="moe", ffn_dim=4))
        weights, chosen = two.route(scores)
        torch.testing.assert_close(weights.sum(-1), torch.ones(7))
        assert chosen[:, 0].tolist() == scores.argmax(-1).tolist()
        one = MixtureOfExperts(tiny_config(feed_forward="moe", ffn_dim=4, n_experts_per_token=1))
        weights, _ = one.route(scores)
        torch.testing.assert_close(weights[:, 0], scores.softmax(-1).amax(-1))

    def test_the_balance_loss_is_1_for_even_use_and_e_for_a_single_expert(self):
        even = torch.eye(8).repeat(3, 1) * 50
        assert load_balancing_loss(even, 1).item() == pytest.approx(1.0, abs=1e-5)
        one = torch.zeros(24, 8)
        one[:, 3] = 50
        assert load_balancing_loss(one, 1).item() == pytest.approx(8.0, abs=1e-5)
        scores = torch.randn(10, 4, requires_grad=True)  # by the formula
        f = [sum(int(row.argmax()) == e for row in scores) / 10 for e in range(4)]
        p = scores.softmax(-1).mean(0)
        expected = 4 * sum(f[e] * p[e] for e in range(4))
        torch.testing.assert_close(load_balancing_loss(scores, 1), expected)

    def test_training_balances_the_load(self):
        model = random_model(tiny_config(feed_forward="moe", ffn_dim=8, drop_rate=0.0), 0).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        ids = torch.randint(97, (8, 16), generator=torch.Generator().manual_seed(0))
        losses = []
        for _ in range(30):
            with router_scores(model) as scores:
                model(ids)
            assert [tuple(layer.shape) for layer in scores] == [(128, 8)] * 2
            loss = sum(load_balancing_loss(layer, 2) for layer in scores)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[-1] < losses[0]
        model(ids)
        assert len(scores) == 2  # the block is left: nothing more is collected


class TestWeights:
    @every_kind
    @pytest.mark.parametrize("tied", [True, False])
    def test_saved_weights_load_as_they_were(self, keys, tied, tmp_path):
        model = lively_model(tiny_config(**keys, tie_embeddings=tied))
        save_model(model, tmp_path)
        loaded = load_weights(plan_load(tmp_path, []), device=torch.device("cpu"), dtype=torch.float32)
        assert_same_parameters(loaded.model, model)
        ids = torch.tensor([[5, 3, 8, 1]])
        torch.testing.assert_close(loaded.model(ids), model(ids), atol=1e-6, rtol=0)
        assert loaded.config == model.config

    @every_kind
    def test_weights_saved_in_hugging_faces_layout_load_as_they_were(self, keys, tmp_path):
        from safetensors.torch import save_file

        model = lively_model(tiny_config(**keys))
        folder = save_tutorial(model, tmp_path)  # for its config.json
        laid = lay_out(dict(model.named_parameters()), HUGGINGFACE, model.config)
        save_file({name: t.detach() for name, t in laid.items()}, folder / "model.safetensors")
        loaded = load_weights(plan_load(tmp_path, []), device=torch.device("cpu"), dtype=torch.float32)
        assert_same_parameters(loaded.model, model)

    @pytest.mark.parametrize("names", [("w1", "w3", "w2"), ("fc1", "fc2", "fc3")])
    def test_a_gated_layer_loads_under_its_other_names(self, names, tmp_path):
        from safetensors.torch import load_file, save_file

        model = lively_model(tiny_config(feed_forward="swiglu"))
        folder = save_tutorial(model, tmp_path)
        state = load_file(folder / "model.safetensors")
        table = dict(zip(("gate_proj", "up_proj", "down_proj"), names, strict=True))
        renamed = {}
        for name, tensor in state.items():
            for ours, theirs in table.items():
                name = name.replace(ours, theirs)
            renamed[name] = tensor
        save_file(renamed, folder / "model.safetensors")
        loaded = load_weights(plan_load(folder, []), device=torch.device("cpu"), dtype=torch.float32)
        assert_same_parameters(loaded.model, model)

    def test_without_a_config_a_gate_is_assumed_to_be_silu_with_a_note(self, tmp_path):
        model = lively_model(tiny_config(feed_forward="swiglu", emb_dim=64, n_heads=1))
        folder = save_tutorial(model, tmp_path)
        (folder / "config.json").unlink()
        plan = plan_load(folder, [])
        assert plan.config.feed_forward == "swiglu"
        assert any("gated, by SiLU" in note for note in plan.notes)
        geglu = plan_load(folder, sources_from_options(None, None, ["feed_forward=geglu"]))
        assert (geglu.config.feed_forward, geglu.config.activation) == ("geglu", "gelu")

    def test_without_a_config_a_mixture_needs_the_experts_per_token(self, tmp_path):
        model = lively_model(tiny_config(feed_forward="moe", emb_dim=64, n_heads=1, ffn_dim=8))
        folder = save_tutorial(model, tmp_path)
        (folder / "config.json").unlink()
        with pytest.raises(WeightsError, match="n_experts_per_token=K"):
            plan_load(folder, [])
        plan = plan_load(folder, sources_from_options(None, None, ["n_experts_per_token=2"]))
        assert plan.config.n_experts == 8
        loaded = load_weights(plan, device=torch.device("cpu"), dtype=torch.float32)
        assert_same_parameters(loaded.model, model)

    @pytest.mark.parametrize("asked", ["mlp", "moe"])
    def test_another_feed_forward_than_the_files_is_refused(self, asked, tmp_path):
        folder = save_tutorial(lively_model(tiny_config(feed_forward="swiglu")), tmp_path)
        with pytest.raises(WeightsError, match=f"holds gated feed-forwards, .* feed_forward {asked}"):
            plan_load(folder, sources_from_options(None, None, [f"feed_forward={asked}"]))

    def test_a_missing_expert_is_listed(self, tmp_path):
        from safetensors.torch import load_file, save_file

        folder = save_tutorial(lively_model(tiny_config(feed_forward="moe", ffn_dim=8)), tmp_path)
        state = load_file(folder / "model.safetensors")
        del state["trf_blocks.1.ff.fc2.3.weight"]
        save_file(state, folder / "model.safetensors")
        plan = plan_load(folder, [])
        with pytest.raises(WeightsError, match=r"1 missing: trf_blocks\.1\.ff\.fc2\.3\.weight"):
            load_weights(plan, device=torch.device("cpu"), dtype=torch.float32)


class TestPresetsAndTables:
    def test_the_presets_with_other_feed_forwards(self):
        assert {"gpt-124m-swiglu", "gpt-124m-relu", "gpt-124m-moe"} <= set(preset_names())
        moe = resolve_options("gpt-124m-moe", None, []).config
        assert (moe.n_experts, moe.n_experts_per_token, moe.ffn_dim) == (8, 2, 2048)

    def test_compare_ffn_shows_swiglu_and_the_4x_mlp_at_the_same_cost(self, cli):
        import json

        result = cli("params", "--compare-ffn", "-p", "gpt2-small", "--json")
        records = {record["kind"]: record for record in json.loads(result.out)}
        assert records["SwiGLU"]["flops_per_token"] == records["mlp, GELU"]["flops_per_token"] == 9437184
        moe = records["MoE, 8 × SwiGLU, 2 per token"]
        assert moe["parameters_per_layer"] == 8 * 3 * 768 * 2048 + 8 * 768
        assert moe["active_per_layer"] == 2 * 3 * 768 * 2048 + 8 * 768
        assert "9,437,184" in cli("params", "--compare-ffn").out
        assert cli("params", "--compare-ffn", "--all").status == 2
