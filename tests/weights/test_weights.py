"""Weights: both layouts load into the same model, and one message names everything that does not fit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gptcli.config.presets import resolve_options, sources_from_options
from gptcli.errors import WeightsError
from gptcli.model.gpt import GPTModel
from gptcli.weights.load import LoadedWeights, load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.report import load_report
from tests.models import (
    huggingface_config,
    huggingface_state,
    lively_model,
    peak_bytes,
    save_huggingface,
    save_tutorial,
    sparse_safetensors,
    tiny_config,
)

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def load(
    path: Path, *assignments: str, preset: str | None = None, dtype: torch.dtype = torch.float32
) -> LoadedWeights:
    plan = plan_load(path, sources_from_options(preset, None, assignments))
    return load_weights(plan, device=torch.device("cpu"), dtype=dtype)


def fails(path: Path, *assignments: str, preset: str | None = None) -> str:
    with pytest.raises(WeightsError) as error:
        load(path, *assignments, preset=preset)
    return str(error.value)


def rewrite(folder: Path, change) -> Path:
    """Save a model's tensors again after `change` has edited the dictionary."""
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file({n: t.contiguous() for n, t in state.items()}, folder / "model.safetensors")
    return folder


def assert_same(model: GPTModel, other: GPTModel, atol: float = 0) -> None:
    torch.testing.assert_close(other(IDS), model(IDS), atol=atol, rtol=0)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request) -> GPTModel:
    return lively_model(tiny_config(tie_embeddings=request.param))


class TestLayouts:
    def test_both_layouts_give_the_models_logits(self, model, tmp_path):
        for folder in (save_tutorial(model, tmp_path / "t"), save_huggingface(model, tmp_path / "h")):
            loaded = load(folder)
            assert_same(model, loaded.model, atol=1e-6)
            assert loaded.config.tie_embeddings == model.config.tie_embeddings
            assert (
                loaded.model.out_head.weight is loaded.model.tok_emb.weight
            ) == model.config.tie_embeddings

    @pytest.mark.parametrize(
        "prefix", ["transformer.", "module.", "module.transformer.", "_orig_mod.module."]
    )
    def test_prefixes_do_not_matter(self, model, tmp_path, prefix):
        def put(state):
            for name in list(state):
                head = name == "lm_head.weight"
                state[(prefix.replace("transformer.", "") if head else prefix) + name] = state.pop(name)

        assert_same(model, load(rewrite(save_huggingface(model, tmp_path), put)).model, atol=1e-6)

    def test_mask_buffers_are_ignored_and_listed(self, model, tmp_path):
        def masks(state):
            state["h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
            state["h.1.attn.masked_bias"] = torch.tensor(-1e4)

        folder = rewrite(save_huggingface(model, tmp_path / "h"), masks)
        assert_same(model, load(folder).model, atol=1e-6)
        rows = {row.source: row.action for row in load_report(plan_load(folder, []))}
        assert rows["h.0.attn.bias"] == rows["h.1.attn.masked_bias"] == "ignored"
        tutorial = save_tutorial(model, tmp_path / "t")
        rewrite(tutorial, lambda state: state.update({"trf_blocks.1.att.mask": torch.ones(16, 16)}))
        assert_same(model, load(tutorial).model)

    def test_names_that_only_begin_like_a_mask_are_not_skipped(self, model, tmp_path):
        folder = rewrite(
            save_huggingface(model, tmp_path), lambda s: s.update({"h.0.attn.bias2": torch.ones(1)})
        )
        assert "1 unexpected: h.0.attn.bias2" in fails(folder)

    def test_without_a_config_heads_are_64_wide_with_a_note(self, tmp_path):
        model = lively_model(tiny_config(emb_dim=128, n_heads=2))
        folder = save_huggingface(model, tmp_path, config=False)
        plan = plan_load(folder / "model.safetensors", [])
        assert plan.config.n_heads == 2
        assert "taking 2 heads of width 64" in plan.notes[0]
        assert_same(model, load(folder).model, atol=1e-5)

    def test_one_head_is_named_in_the_singular(self, tmp_path):
        folder = save_huggingface(lively_model(tiny_config(emb_dim=64, n_heads=1)), tmp_path, config=False)
        assert "taking 1 head of width 64" in plan_load(folder, []).notes[0]

    def test_without_a_config_a_width_that_64_does_not_divide_needs_n_heads(self, model, tmp_path):
        folder = save_huggingface(model, tmp_path, config=False)
        assert "--set n_heads=N" in fails(folder)
        assert_same(model, load(folder, "n_heads=4").model, atol=1e-6)

    def test_shards(self, model, tmp_path):
        state = huggingface_state(model)
        names = sorted(state)
        shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for shard, held in shards.items():
            save_file({name: state[name] for name in held}, tmp_path / shard)
        index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps(index))
        (tmp_path / "config.json").write_text(json.dumps(huggingface_config(model.config)))
        assert_same(model, load(tmp_path).model, atol=1e-6)
        assert_same(model, load(path).model, atol=1e-6)
        for change, message in (
            ({names[0]: "b.safetensors"}, "and the index does not say so"),
            ({"more": "a.safetensors"}, "its shards lack 1 tensor, the first is 'more'"),
            ({"more": "c.safetensors"}, "shard c.safetensors is missing"),
            ({"more": "../a.safetensors"}, "not a plain file name"),
            ({"more": 3}, "not the index"),
        ):
            path.write_text(json.dumps({"weight_map": index["weight_map"] | change}))
            assert message in fails(tmp_path)
        for text in ("[]", '{"weight_map": ' + "9" * 5000 + "}"):
            path.write_text(text)
            assert "not the index" in fails(tmp_path)

    def test_an_index_of_gigabytes_is_refused_by_its_first_bytes(self, tmp_path):
        before = peak_bytes()
        with (tmp_path / "model.safetensors.index.json").open("wb") as file:
            file.truncate(3 << 30)  # a sparse file: no bytes are there
        assert "more than 16,777,216 bytes" in fails(tmp_path)
        assert peak_bytes() - before < 200e6

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_files_of_every_float_type(self, model, tmp_path, dtype):
        def cast(state):
            state.update({name: tensor.to(dtype) for name, tensor in state.items()})

        loaded = load(rewrite(save_huggingface(model, tmp_path), cast))
        rounded = lively_model(model.config)
        with torch.no_grad():
            for parameter in rounded.parameters():
                parameter.copy_(parameter.to(dtype))
        assert_same(rounded, loaded.model, atol=1e-6)

    def test_integer_weights_are_refused(self, model, tmp_path):
        folder = rewrite(
            save_huggingface(model, tmp_path), lambda s: s.update({"ln_f.bias": s["ln_f.bias"].int()})
        )
        assert "ln_f.bias: dtype I32" in fails(folder)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
    def test_tensors_in_our_layout_are_not_copied(self, model, tmp_path):
        folder = save_huggingface(model, tmp_path)
        loaded = load(folder).model
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        of_the_file = [m[0].split("-") for m in maps if m[-1] == str(folder / "model.safetensors")]
        spans = [(int(low, 16), int(high, 16)) for low, high in of_the_file]
        for name, parameter in loaded.named_parameters():
            assert any(low <= parameter.data_ptr() < high for low, high in spans), name
        assert not loaded.trf_blocks[0].ff.layers[0].weight.is_contiguous()  # input first, as in the file

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
    def test_loading_takes_no_more_memory_than_the_file(self, tmp_path):
        path = sparse_safetensors(
            tmp_path / "model.safetensors", resolve_options("gpt2-small", None, []).config
        )
        code = f"""
import torch
from pathlib import Path
from tests.models import peak_bytes as peak
before = peak()
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
plan = plan_load(Path({str(path)!r}), [])
loaded = load_weights(plan, device=torch.device("cpu"), dtype=torch.float32)
for parameter in loaded.model.parameters():
    parameter.sum()  # every page has been touched
print((peak() - before) / Path({str(path)!r}).stat().st_size)
"""
        run = [sys.executable, "-c", code]
        root = Path(__file__).parents[2]
        ratio = float(subprocess.check_output(run, cwd=root, timeout=120))
        assert 0.9 < ratio < 1.2


class TestHead:
    def test_a_tied_files_embedding_serves_as_head_with_a_note(self, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        rows = [row for row in load_report(plan_load(folder, [])) if row.action == "tied"]
        assert [(row.source, row.targets) for row in rows] == [("tok_emb.weight", ("out_head.weight",))]
        (folder / "config.json").unlink()
        plan = plan_load(folder, sources_from_options(None, None, ["n_heads=4"]))
        assert "the token embedding serves as head" in plan.notes[0]

    def test_a_file_that_holds_the_tied_matrix_as_head(self, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        rewrite(folder, lambda s: s.update({"lm_head.weight": s.pop("wte.weight")}))
        assert_same(model, load(folder).model, atol=1e-6)
        (folder / "config.json").unlink()
        assert_same(model, load(folder, "n_heads=4").model, atol=1e-6)
        plan = plan_load(folder, sources_from_options(None, None, ["n_heads=4"]))
        assert "its head serves as embedding" in plan.notes[0]

    def test_config_ties_and_the_files_different_head_is_unused_and_reported(self, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        rewrite(folder, lambda s: s.update({"lm_head.weight": s["wte.weight"] + 1}))
        loaded = load(folder)
        assert_same(model, loaded.model, atol=1e-6)
        assert "differs from the token embedding and is not used" in loaded.notes[0]
        rewrite(folder, lambda s: s.update({"lm_head.weight": s["wte.weight"].clone()}))
        assert load(folder).notes == ()

    def test_without_a_config_a_different_head_is_used_and_an_equal_one_tied(self, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=False, emb_dim=64, n_heads=1))
        folder = save_huggingface(model, tmp_path, config=False)
        assert_same(model, load(folder).model, atol=1e-5)
        rewrite(folder, lambda s: s.update({"lm_head.weight": s["wte.weight"].clone()}))
        loaded = load(folder)
        assert loaded.config.tie_embeddings
        assert loaded.model.out_head.weight is loaded.model.tok_emb.weight

    def test_config_unties_and_a_missing_head_is_an_error(self, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path, tie_word_embeddings=False)
        assert "1 missing: lm_head.weight" in fails(folder)
        (folder / "config.json").write_text(
            json.dumps(huggingface_config(model.config, tie_word_embeddings=False))
        )
        rewrite(folder, lambda s: s.update({"lm_head.weight": s.pop("wte.weight")}))
        assert "1 missing: wte.weight" in fails(folder)


class TestRefusals:
    def test_missing_tensors_are_listed_and_never_drawn(self, model, tmp_path):
        def drop(state):
            del state["h.1.mlp.c_fc.bias"], state["h.0.attn.c_attn.weight"], state["wpe.weight"]

        message = fails(rewrite(save_huggingface(model, tmp_path), drop))
        assert "3 missing: wpe.weight, h.0.attn.c_attn.weight, h.1.mlp.c_fc.bias" in message
        assert "gptcli inspect" in message

    def test_the_tutorials_layout_without_its_embedding(self, tmp_path):
        folder = save_tutorial(lively_model(tiny_config()), tmp_path)
        assert "1 missing: tok_emb.weight" in fails(rewrite(folder, lambda s: s.pop("tok_emb.weight")))

    @pytest.mark.parametrize("name", ["attn.c_attn", "mlp.c_fc", "mlp.c_proj"])
    def test_a_transposed_matrix_is_refused_with_both_shapes(self, model, tmp_path, name):
        key = f"h.0.{name}.weight"
        folder = rewrite(save_huggingface(model, tmp_path), lambda s: s.update({key: s[key].T}))
        shape = list(huggingface_state(model)[key].shape)
        message = fails(folder)
        assert f"{key}: shape {shape[::-1]}, expected {shape}" in message
        assert "transposed" in message

    def test_a_wrong_shape_is_refused_with_both_shapes(self, model, tmp_path):
        folder = rewrite(
            save_huggingface(model, tmp_path), lambda s: s.update({"h.1.ln_1.bias": torch.ones(7)})
        )
        assert "h.1.ln_1.bias: shape [7], expected [24]" in fails(folder)

    def test_a_scalar_or_empty_where_a_matrix_should_be(self, model, tmp_path):
        for number, tensor in enumerate(
            (torch.tensor(1.0), torch.ones(0), torch.ones(0, 24), torch.ones(2, 3, 4))
        ):
            for name in huggingface_state(model):
                folder = save_huggingface(model, tmp_path / f"{number}{name}")
                fails(rewrite(folder, lambda s, name=name, tensor=tensor: s.update({name: tensor.clone()})))

    def test_two_names_for_one_tensor(self, model, tmp_path):
        folder = save_huggingface(model, tmp_path)
        rewrite(folder, lambda s: s.update({"transformer.wte.weight": s["wte.weight"].clone()}))
        assert "are the same tensor of the model" in fails(folder)

    def test_no_known_layout(self, tmp_path):
        save_file({"model.layers.0.mlp.up_proj.weight": torch.ones(1)}, tmp_path / "model.safetensors")
        message = fails(tmp_path)
        assert "'wte.weight' (Hugging Face GPT-2)" in message
        assert "found model.layers.0.mlp.up_proj.weight" in message
        save_file({}, tmp_path / "model.safetensors")
        assert "no tensors at all" in fails(tmp_path)

    def test_a_config_json_that_contradicts_the_tensors_is_refused(self, model, tmp_path):
        folder = save_huggingface(model, tmp_path, n_layer=3)
        assert "says n_layers 3, and the tensors next to it have n_layers 2" in fails(folder)
        for change, message in (
            ({"add_cross_attention": True}, "add_cross_attention"),
            ({"n_head": 5}, "n_heads must divide emb_dim"),
            ({"n_head": "4"}, "n_heads must be a whole number"),
            ({"n_embd": "x"}, "says emb_dim x"),
        ):
            (folder / "config.json").write_text(json.dumps(huggingface_config(model.config, **change)))
            assert message in fails(folder)

    def test_flags_and_presets_that_contradict_the_file_are_refused(self, model, tmp_path):
        folder = save_huggingface(model, tmp_path)
        message = fails(folder, "n_layers=5")
        assert "--set asks for n_layers 5; leave the option out" in message
        assert "--set asks for n_heads 2" in fails(folder, "n_heads=2")
        message = fails(folder, "qkv_bias=false")
        assert "--set qkv_bias=false contradicts" in message
        assert "leave the option out" in message
        tied = model.config.tie_embeddings
        assert "leave the option out" in fails(folder, f"tie_embeddings={str(not tied).lower()}")
        assert_same(
            model, load(folder, "qkv_bias=true", f"tie_embeddings={str(tied).lower()}").model, atol=1e-6
        )
        assert "holds a model of vocab_size 97" in fails(folder, preset="gpt2-small")

    def test_a_missing_file_and_other_formats_are_refused(self, tmp_path):
        (tmp_path / "x.txt").write_text("hi")
        (tmp_path / "named.safetensors").mkdir()
        assert "no such weights file or folder" in fails(tmp_path / "none")
        assert "expected a .safetensors file" in fails(tmp_path / "x.txt")
        assert "neither model.safetensors nor model.safetensors.index.json" in fails(tmp_path)

    def test_git_lfs_pointers_are_named_wherever_they_are(self, tmp_path):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"
        index = tmp_path / "model.safetensors.index.json"

        def assert_named(path: Path, culprit: Path) -> None:
            message = fails(path)
            assert message.startswith(f"{culprit}: a Git LFS pointer")
            assert "git lfs pull" in message
            assert "\n" not in message

        shard = tmp_path / "a.safetensors"
        shard.write_bytes(pointer)
        assert_named(shard, shard)
        index.write_text(json.dumps({"weight_map": {"wte.weight": "a.safetensors"}}))
        assert_named(tmp_path, shard)
        index.write_bytes(pointer)
        assert_named(tmp_path, index)
        single = tmp_path / "model.safetensors"
        single.write_bytes(pointer)
        assert_named(tmp_path, single)


class TestArithmeticOfTheConfig:
    """Settings that no tensor shows: `config.json` sets them, a flag overrides them, the model has them."""

    def test_activation_and_norm_of_a_huggingface_config(self, tmp_path):
        config = tiny_config(activation="relu", norm_eps=0.01, tie_embeddings=True)
        model = lively_model(config)
        folder = save_huggingface(model, tmp_path, activation_function="relu")
        assert_same(model, load(folder).model, atol=1e-6)
        assert load(folder, "activation=gelu").config.activation == "gelu"

    def test_our_own_keys_under_gptcli(self, tmp_path):
        model = lively_model(tiny_config(norm_unbiased=True, tie_embeddings=True))
        folder = save_huggingface(model, tmp_path, gptcli={"norm_unbiased": True})
        assert_same(model, load(folder).model, atol=1e-6)

    def test_the_seven_keys_as_config_json(self, tmp_path):
        model = lively_model(tiny_config())
        folder = save_tutorial(model, tmp_path)
        seven = ("vocab_size", "context_length", "emb_dim", "n_heads", "n_layers", "drop_rate", "qkv_bias")
        (folder / "config.json").write_text(json.dumps({k: model.config.model_dump()[k] for k in seven}))
        assert_same(model, load(folder).model)

    def test_a_bias_that_config_json_promises_is_never_left_out(self, tmp_path):
        folder = save_tutorial(lively_model(tiny_config(qkv_bias=False)), tmp_path, qkv_bias=True)
        assert "says qkv_bias True, and the tensors next to it have qkv_bias False" in fails(folder)

    def test_a_bias_that_config_json_denies_is_used_and_noted(self, tmp_path):
        model = lively_model(tiny_config(qkv_bias=True))
        folder = save_tutorial(model, tmp_path, qkv_bias=False)
        assert_same(model, load(folder).model)
        (note,) = plan_load(folder, []).notes
        assert "qkv bias comes from the weights file, not from" in note

    def test_biases_come_from_the_file_with_one_note(self, tmp_path):
        small = {"vocab_size": 50257, "context_length": 1024, "emb_dim": 768, "n_heads": 12, "n_layers": 12}
        model = GPTModel(tiny_config(**small, tie_embeddings=True)).requires_grad_(False)
        plan = plan_load(save_huggingface(model, tmp_path), sources_from_options("gpt-124m", None, []))
        assert plan.notes == ("qkv bias and tied head come from the weights file, not from gpt-124m",)
        assert plan.fitting_preset == "gpt2-small"
        assert plan.resolved.origin["qkv_bias"] == "weights"
        message = fails(tmp_path, preset="gpt2-medium")
        assert "gpt2-medium asks for emb_dim 1024, n_layers 24, ffn_dim 4096, n_heads 16" in message
        assert "use --preset gpt2-small" in message
        assert "(it fits --preset gpt2-small)" in fails(tmp_path, "n_layers=5")
        (tmp_path / "config.json").write_text(json.dumps(huggingface_config(model.config, n_layer=24)))
        assert "(they are those of gpt2-small)" in fails(tmp_path)
