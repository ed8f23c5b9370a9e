"""`params` and `inspect`: what they print, as text and as JSON."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gptcli.config.presets import preset_names, resolve_options
from tests.models import lively_model, save_huggingface, save_tutorial, sparse_safetensors, tiny_config


class TestParams:
    def test_json_has_the_promised_keys(self, cli):
        record = json.loads(cli("params", "--preset", "GPT2", "--json").out)
        assert record["preset"] == "gpt2-small"
        assert record["config"]["emb_dim"] == 768
        assert record["config"].keys() == record["config_origin"].keys()
        assert (
            record["parameters"] | {"total": 124439808, "untied_without_qkv_bias": 163009536}
            == record["parameters"]
        )
        parts = ("token_embedding", "position_embedding", "attention", "feed_forward", "norms", "output_head")
        assert sum(record["parameters"][part] for part in parts) == 124439808
        assert record["bytes"] == {"float32": 497759232, "bfloat16": 248879616, "int8": 124439808}
        assert record["kv_cache"] == {"bytes_per_token": 73728, "bytes_full_context": 73728 * 1024}
        assert record["flops"] == {
            "forward_per_token": 284812800,
            "forward_per_token_without_attention": 247064064,
        }

    def test_the_table_has_every_digit_however_narrow_the_terminal(self, cli, monkeypatch):
        monkeypatch.setenv("COLUMNS", "20")
        out = cli("params", "-p", "gpt2-xl").out
        for number in ("1,557,611,200", "1,638,022,400", "1,557,380,800", "1,637,792,000", "614,400"):
            assert number in out
        assert "…" not in out.replace("… without", "")

    def test_the_default_is_the_tutorials_model(self, cli):
        assert "163,009,536" in cli("params").out

    def test_all_presets_in_one_table(self, cli):
        out = cli("params", "--all").out
        assert all(name in out for name in preset_names())
        records = json.loads(cli("params", "--all", "--json").out)
        assert [record["preset"] for record in records] == list(preset_names())
        small = records[preset_names().index("gpt2-small")]
        assert small == json.loads(cli("params", "-p", "gpt2-small", "--json").out)
        assert cli("params", "--all", "-p", "gpt2").status == 2

    def test_values_of_a_config_file_and_of_flags_have_their_origin(self, cli, tiny_config_file):
        record = json.loads(cli("params", "-c", tiny_config_file, "--set", "n_layers=7", "--json").out)
        assert record["preset"] is None
        assert record["config_origin"]["n_layers"] == "flag"
        assert record["config_origin"]["emb_dim"] == "file"

    def test_an_enormous_model_is_counted_at_once(self, cli):
        result = cli("params", "--set", "emb_dim=100000", "--set", "n_heads=1000", "--set", "n_layers=10000")
        assert result.status == 0
        assert "1,200," in result.out

    def test_output_goes_to_a_file(self, cli, tmp_path):
        assert cli("params", "-o", tmp_path / "p.txt").out == ""
        assert "163,009,536" in (tmp_path / "p.txt").read_text()

    def test_wrong_usage(self, cli):
        for arguments in (
            ["-p", "gpt3"],
            ["-c", "none.yaml"],
            ["-p", "gpt2", "-c", "x"],
            ["--set", "x"],
            ["extra"],
        ):
            result = cli("params", *arguments)
            assert (result.status, result.out) == (2, "")
            assert result.err.startswith("error: ")


class TestInspectModel:
    def test_the_tree_shows_every_module_with_shape_and_count(self, cli):
        out = cli("inspect", "-p", "gpt2-small").out
        for part in (
            "50257 × 768",
            "1024 × 768",
            "MultiHeadAttention",
            "W_query",
            "3072 × 768",
            "tied: tok_emb.weight",
        ):
            assert part in out
        assert "124,439,808" in out
        assert "trf_blocks.0 … 11" in out

    def test_json_lists_every_parameter(self, cli):
        record = json.loads(cli("inspect", "-p", "gpt-124m", "--json").out)
        assert record["total"] == 163009536 == sum(p["count"] for p in record["parameters"].values())
        assert record["parameters"]["trf_blocks.11.ff.layers.2.weight"] == {
            "shape": [768, 3072],
            "count": 2359296,
        }

    def test_it_never_refuses_for_memory(self, cli):
        assert cli("inspect", "--set", "emb_dim=12288", "--set", "n_layers=96").status == 0


class TestInspectWeights:
    @pytest.fixture
    def folder(self, tmp_path):
        return save_huggingface(lively_model(tiny_config(tie_embeddings=True)), tmp_path / "[bold]model")

    def test_every_tensor_is_shown_with_its_parameter(self, cli, folder):
        result = cli("inspect", folder)
        assert (result.status, result.err) == (0, "")
        assert f"{folder}: 28 tensors" in result.out
        for part in (
            "Hugging Face GPT-2",
            "format=pt",
            "preset that fits: none",
            "24 × 72",
            "split",
            "transposed",
        ):
            assert part in result.out
        assert "trf_blocks.1.att.{W_query|W_key|W_value}.weight" in result.out
        assert "the embedding serves as head" in result.out
        assert cli("inspect", "--weights", folder).out == result.out

    def test_json_shows_layout_config_tensors_and_report(self, cli, folder):
        record = json.loads(cli("inspect", folder, "--json").out)
        assert record["layout"] == "huggingface"
        assert record["config"]["n_heads"] == 4
        assert record["config_origin"]["n_layers"] == "weights"
        by_name = {tensor["name"]: tensor for tensor in record["tensors"]}
        assert (
            by_name["wpe.weight"] | {"dtype": "F32", "shape": [16, 24], "bytes": 1536}
            == by_name["wpe.weight"]
        )
        actions = {row["source"]: row["action"] for row in record["report"]}
        assert actions["wpe.weight"] == "as is"
        assert actions["h.0.mlp.c_fc.weight"] == "transposed"
        assert record["fault"] is None

    def test_the_fitting_preset_is_named(self, cli, tmp_path):
        config = resolve_options("gpt-124m", None, []).config
        path = sparse_safetensors(tmp_path / "model.safetensors", config)
        assert "preset that fits: gpt-124m" in cli("inspect", path).out

    def test_missing_and_unexpected_are_listed_and_the_status_is_1(self, cli, folder):
        path = folder / "model.safetensors"
        state = load_file(path)
        state["h.0.extra"] = state.pop("h.0.ln_1.bias")
        save_file(state, path)
        result = cli("inspect", folder)
        assert result.status == 1
        assert "missing" in result.out
        assert "expected as 'h.0.ln_1.bias'" in result.out
        assert "unexpected" in result.out
        assert "1 missing: h.0.ln_1.bias; 1 unexpected: h.0.extra" in result.err
        assert json.loads(cli("inspect", folder, "--json").out)["fault"]

    def test_a_file_of_unknown_layout_is_still_listed(self, cli, tmp_path):
        save_file({"\x1b[31mx": torch.ones(2, 3)}, tmp_path / "model.safetensors", metadata={"k": "\x1b[0mv"})
        result = cli("inspect", tmp_path)
        assert result.status == 1
        assert "2 × 3" in result.out
        assert "no layout that gptcli knows" in result.err
        assert "\x1b" not in result.out + result.err

    def test_both_ways_to_name_the_file_are_wrong_usage(self, cli, folder):
        result = cli("inspect", folder, "--weights", folder)
        assert (result.status, result.out) == (2, "")

    def test_a_preset_that_does_not_fit_is_refused(self, cli, folder):
        result = cli("inspect", folder, "-p", "gpt2")
        assert result.status == 1
        assert "gpt2-small asks for" in result.err

    def test_a_six_gigabyte_file_answers_from_its_header(self, cli, tmp_path):
        config = resolve_options("gpt2-xl", None, []).config
        path = sparse_safetensors(tmp_path / "model.safetensors", config)
        assert path.stat().st_size > 6_000_000_000
        result = cli("inspect", path)
        assert "preset that fits: gpt2-xl" in result.out

    def test_the_tutorials_layout_is_detected(self, cli, tmp_path):
        folder = save_tutorial(lively_model(tiny_config()), tmp_path)
        result = cli("inspect", folder)
        assert "layout: the tutorial's" in result.out
        assert result.status == 0
