"""The insides of a model: they equal its forward pass, and those of `transformers` with its weights."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2LMHeadModel

from gptcli.config.choices import GATES
from gptcli.config.presets import resolve_options
from gptcli.explain.gradients import gpt_blocks, small_network, without_shortcuts
from gptcli.explain.layer_stats import layer_stats
from gptcli.explain.lens import logit_lens
from gptcli.explain.module_trace import trace_modules, trace_modules_of_config
from gptcli.explain.scoring import top_candidates
from gptcli.explain.trace import trace
from gptcli.model.init import empty_model, random_model
from gptcli.weights.save import save_model
from tests.models import lively_model, save_huggingface, tiny_config

IDS = [3, 1, 4, 1, 5, 9, 2, 6]
PUBLISHED_GRADIENTS = {  # the tutorial's, seed 123
    "without_shortcuts": ("2.01736e-04", "1.20112e-04", "7.15204e-04", "1.39887e-03", "5.04965e-03"),
    "with_shortcuts": ("0.221698", "0.206941", "0.328970", "0.266573", "1.325854"),
}
KINDS = [
    {},
    {"activation": "relu"},
    *({"feed_forward": kind} for kind in GATES),
    {"feed_forward": "moe", "ffn_dim": 8},
]


class TestTrace:
    @pytest.mark.parametrize("keys", KINDS, ids=str)
    def test_the_last_row_of_the_lens_is_the_models_own_prediction(self, keys):
        model = lively_model(tiny_config(**keys))
        found = trace(model, IDS)
        with torch.no_grad():
            logits = model(torch.tensor([IDS]))[0]
        torch.testing.assert_close(found.logits, logits, atol=0, rtol=0)
        lens = logit_lens(model, found, position=5, k=97)
        assert [row.name for row in lens] == ["embedding", "block 0", "block 1"]
        by_id = {c.token_id: c.logit for c in lens[-1].candidates}
        np.testing.assert_allclose([by_id[i] for i in range(97)], logits[5], atol=1e-6)
        assert len(found.activations) == len(found.attention) == 2
        assert all(found.activations)

    @pytest.mark.parametrize(
        "scale", [{}, {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}], ids=str
    )
    def test_attention_and_residual_are_those_of_transformers(self, scale, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True, **scale))
        save_model(model, tmp_path)
        reference = GPT2LMHeadModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
        with torch.no_grad():
            out = reference(torch.tensor([IDS]), output_attentions=True, output_hidden_states=True)
        found = trace(model, IDS)
        for ours, theirs in zip(found.attention, out.attentions, strict=True):
            torch.testing.assert_close(ours, theirs[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(ours.sum(-1), torch.ones(4, 8), atol=1e-6, rtol=0)
            assert torch.equal(ours, ours.tril())
        for ours, theirs in zip(found.residual[:-1:2], out.hidden_states[:-1], strict=True):
            torch.testing.assert_close(ours, theirs[0], atol=1e-5, rtol=0)

    def test_later_passes_of_the_model_are_not_recorded(self):
        model = lively_model(tiny_config())
        idx = torch.tensor([IDS])
        before = model(idx)
        recorded, calls = trace(model, IDS), trace_modules(model, [IDS])
        with without_shortcuts(model):
            assert not torch.equal(model(idx), before)
        lengths = [len(recorded.residual), len(recorded.attention), len(recorded.activations), len(calls)]
        assert [len(outputs) for outputs in recorded.activations] == [1, 1]
        assert torch.equal(model(idx), before)
        assert lengths == [
            len(recorded.residual),
            len(recorded.attention),
            len(recorded.activations),
            len(calls),
        ]
        assert [len(outputs) for outputs in recorded.activations] == [1, 1]


class TestPredictions:
    def test_ranks_and_probabilities(self):
        logits = torch.tensor([1.0, 3.0, 3.0, 2.0])
        top = top_candidates(logits, 3)
        assert [(c.rank, c.token_id) for c in top] == [(1, 1), (2, 2), (3, 3)]
        assert sum(c.probability for c in top_candidates(logits, 4)) == pytest.approx(1)
        assert top[0].probability == pytest.approx(float(logits.softmax(-1)[1]))


class TestLayers:
    def test_statistics_are_those_of_the_residual(self):
        model = lively_model(tiny_config(activation="relu"))
        found = trace(model, IDS)
        rows = layer_stats(found)
        assert [row.name for row in rows[:3]] == ["embedding", "block 0 attention", "block 0 feed-forward"]
        for row, residual in zip(rows, found.residual, strict=True):
            array = residual.double().numpy()
            assert row.mean == pytest.approx(array.mean())
            assert row.std == pytest.approx(array.std())
            assert row.largest == pytest.approx(np.abs(array).max())
            assert row.norm == pytest.approx(np.linalg.norm(array, axis=1).mean())
        block = model.trf_blocks[0]
        with torch.no_grad():
            hidden = block.ff.layers[1](block.ff.layers[0](block.norm2(found.residual[1])))
        assert rows[2].share_not_positive == pytest.approx((hidden == 0).double().mean().item())

    def test_entropy_is_log_t_for_even_attention(self):
        model = lively_model(tiny_config())
        with torch.no_grad():
            model.trf_blocks[0].att.W_query.weight.zero_()
            model.trf_blocks[0].att.W_query.bias.zero_()
        row = layer_stats(trace(model, IDS))[1]
        assert row.head_entropies == pytest.approx([sum(math.log(t) for t in range(1, 9)) / 8] * 4)


class TestModuleTrace:
    def test_the_tutorials_shapes(self):
        model = empty_model(resolve_options("gpt-124m", None, []).config)
        calls = {call.name: call for call in trace_modules(model, [[0, 1, 2]] * 2)}
        up, down = calls["trf_blocks.0.ff.layers.0"], calls["trf_blocks.0.ff.layers.2"]
        assert (up.enters, up.leaves) == ((2, 3, 768), (2, 3, 3072))
        assert (down.enters, down.leaves) == ((2, 3, 3072), (2, 3, 768))
        assert calls["out_head"].leaves == (2, 3, 50257)
        assert next(iter(calls)) == "tok_emb"
        assert calls["trf_blocks.0.ff"].parameters == 4_722_432

    def test_a_loaded_model_shows_the_modules_of_its_config_not_the_engines(self, cli, tmp_path):
        config = tiny_config(vocab_size=50257, context_length=32, tie_embeddings=True)
        folder = save_huggingface(lively_model(config), tmp_path)
        loaded = cli("inspect", "-w", folder, "--prompt", "Hello, I am", "--shapes", "--json")
        plain = cli(
            "inspect", "-c", folder / "config.json", "--shapes", "--batch", 1, "--tokens", 4, "--json"
        )
        assert json.loads(loaded.out)["shapes"] == json.loads(plain.out)["modules"]

    def test_a_mixture_is_shown_with_the_models_own_modules(self):
        config = tiny_config(feed_forward="moe", ffn_dim=8)
        kinds = {call.kind for call in trace_modules_of_config(config, [[1, 2, 3]], seed=1)}
        assert {"Linear", "SiLU", "MixtureOfExperts"} <= kinds
        assert "OneDnnLinear" not in kinds

    def test_flops_add_up_to_those_of_params(self):
        from gptcli.config.cost import flops

        config = tiny_config(context_length=8)
        calls = {call.name: call for call in trace_modules(empty_model(config), [list(range(8))])}
        total = sum(calls[f"trf_blocks.{i}"].flops for i in range(2)) + calls["out_head"].flops
        assert total == 8 * flops(config).forward_per_token
        assert calls["trf_blocks.0.ff"].flops == 2 * 8 * 2 * 24 * 96


class TestGradients:
    def test_the_tutorials_published_figures(self, cli):
        record = json.loads(cli("inspect", "--gradients", "--json").out)
        for column, published in PUBLISHED_GRADIENTS.items():
            for row, text in zip(record["layers"], published, strict=True):
                shown = f"{row[column]:.5e}" if "e" in text else f"{row[column]:.6f}"
                assert shown == text

    def test_the_seed_draws_both_networks_alike_and_other_sizes_work(self):
        rows = small_network([4, 4, 2], seed=1)
        assert len(rows) == 2
        assert rows[0] != small_network([4, 4, 2], seed=2)[0]

    def test_a_gpts_gradients_equal_a_hand_written_loop(self):
        config = tiny_config(drop_rate=0.0)
        rows = gpt_blocks(config, IDS, seed=3)
        model = random_model(config, 3)
        F.cross_entropy(model(torch.tensor([IDS[:-1]]))[0], torch.tensor(IDS[1:])).backward()
        for i, row in enumerate(rows):
            sizes = [p.grad.abs() for p in model.trf_blocks[i].parameters() if p.ndim == 2]
            expected = sum(s.sum() for s in sizes) / sum(s.numel() for s in sizes)
            assert row.with_shortcuts == pytest.approx(float(expected), rel=1e-5)
            assert row.without_shortcuts != pytest.approx(row.with_shortcuts, rel=0.1)

    @pytest.mark.parametrize("keys", KINDS, ids=str)
    def test_a_gpts_gradients_without_shortcuts_equal_a_hand_written_chain(self, keys):
        config = tiny_config(**keys, drop_rate=0.1)
        rows = gpt_blocks(config, IDS, seed=3)
        model = random_model(config, 3)
        x = model.tok_emb(torch.tensor([IDS[:-1]])) + model.pos_emb(torch.arange(len(IDS) - 1))
        for layer, block in enumerate(model.trf_blocks):
            x = block.att(block.norm1(x), None, None, layer)
            x = block.ff(block.norm2(x))
        F.cross_entropy(model.out_head(model.final_norm(x))[0], torch.tensor(IDS[1:])).backward()
        for row, block in zip(rows, model.trf_blocks, strict=True):
            sizes = [p.grad.abs().flatten() for p in block.parameters() if p.ndim == 2 and p.grad is not None]
            assert row.without_shortcuts == float(torch.cat(sizes).mean())


class TestCommand:
    @pytest.fixture
    def folder(self, tmp_path):
        model = lively_model(tiny_config(vocab_size=50257, context_length=32, tie_embeddings=True))
        return save_huggingface(model, tmp_path / "model")

    def test_tokens_and_the_most_probable_next_ones_are_shown(self, cli, folder):
        record = json.loads(cli("inspect", "-w", folder, "--prompt", "Hello, I am", "--json").out)
        assert [token["id"] for token in record["tokens"]] == [15496, 11, 314, 716]
        assert [token["text"] for token in record["tokens"]] == ["'Hello'", "','", "' I'", "' am'"]
        assert len(record["next"]["candidates"]) == 5
        generated = json.loads(cli("generate", "Hello, I am", "-w", folder, "-n", 1, "--json").out)
        assert record["next"]["candidates"][0]["token_id"] == generated["completion_ids"][0]
        text = cli("inspect", "-w", folder, "--prompt", "Hello, I am", "--top-k", 3).out
        assert "' am'" in text
        assert "probability" in text

    def test_all_parts_together_as_text_and_json(self, cli, folder):
        flags = ["--top-k", 4, "--all-positions", "--layers", "--logit-lens", "--attention", "--shapes"]
        arguments = ["inspect", "-w", folder, "--prompt", "a 😀", *flags]
        record = json.loads(cli(*arguments, "--json").out)
        assert record["attention"]["shape"] == ["heads", "query", "key"]
        assert np.array(record["attention"]["weights"]).shape == (4, 3, 3)
        assert len(record["layers"]) == 5
        assert len(record["logit_lens"]["layers"]) == 3
        assert len(record["scored"]) == 2
        assert record["tokens"][1]["text"].startswith("b'")
        text = cli(*arguments).out
        for part in (
            "perplexity",
            "entropy of each head",
            "logit lens at token 2",
            "attention of layer 0, head 3",
        ):
            assert part in text

    @pytest.mark.parametrize("ending", ["png", "svg"])
    def test_attention_as_a_picture(self, cli, folder, tmp_path, ending):
        path = tmp_path / f"a.{ending}"
        arguments = ["inspect", "-w", folder, "--prompt", "$x$ 中 costs $5", "--attention", "-o", path]
        result = cli(*arguments)
        assert (result.status, result.out, result.err) == (0, "", "")
        assert path.stat().st_size > 1000
        assert cli(*arguments, "--head", 1, "--layer", 1).status == 0

    def test_shapes_without_a_prompt_need_no_weights(self, cli):
        out = cli("inspect", "-p", "gpt2-xl", "--shapes").out
        assert "[2, 3, 6400]" in out
        assert "trf_blocks.47" in out
        moe = cli(
            "inspect",
            "-p",
            "gpt-124m-moe",
            "--set",
            "n_layers=1",
            "--set",
            "emb_dim=24",
            "--shapes",
            "--json",
        )
        assert json.loads(moe.out)["modules"]

    def test_gradients_of_a_preset_and_as_a_chart(self, cli, tmp_path):
        small = ["-p", "gpt-124m", "--set", "emb_dim=24", "--set", "n_layers=3", "--set", "context_length=16"]
        assert "block 2" in cli("inspect", "--gradients", *small).out
        path = tmp_path / "g.png"
        assert cli("inspect", "--gradients", "-o", path).status == 0
        assert path.read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--top-k", "3"], "need a --prompt"),
            (["--prompt", "a", "--top-k", "0"], "--top-k 0: expected 1 or more"),
            (["--prompt", "a", "--position", "1"], "--position 1: expected 0 to 0"),
            (["--prompt", "a", "--attention", "--layer", "12"], "--layer 12: expected 0 to 11"),
            (["--prompt", "a", "--attention", "--head", "-1"], "--head -1: expected 0 to 11"),
            (["--prompt", " a" * 2000], "--prompt of 2,000 tokens: expected 1 to 1024"),
            (["--tensor-stats"], "give one"),
            (["--gradients", "--layers"], "ask for one"),
            (["--gradients", "-w", "x"], "take no weights"),
            (["--layer-sizes", "3,1"], "is for --gradients"),
            (["--gradients", "--layer-sizes", "3"], "expected two sizes or more"),
            (["--gradients", "--layer-sizes", "a,b"], "expected two sizes or more"),
            (["--gradients", "-o", "x.txt"], "ending in .png, .svg or .pdf"),
            (["--shapes", "--tokens", "5000"], "the context length is 1024"),
        ],
    )
    def test_wrong_usage(self, cli, arguments, message):
        result = cli("inspect", *arguments, "--preset", "gpt-124m")
        assert (result.status, result.out) == (2, "")
        assert message in result.err
