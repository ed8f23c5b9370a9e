"""The numbers in a weights file: statistics with little memory, and differences across layouts."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gptcli.config.presets import resolve_options
from gptcli.weights import tensor_data
from gptcli.weights.files import open_checkpoint
from gptcli.weights.tensor_data import tensor_stats
from tests.models import lively_model, save_huggingface, save_tutorial, sparse_safetensors, tiny_config

ROOT = Path(__file__).parents[2]


def stats_of(tensor: torch.Tensor, tmp_path: Path):
    save_file({"before": torch.ones(3), "x": tensor}, tmp_path / "x.safetensors")
    return tensor_stats(open_checkpoint(tmp_path / "x.safetensors").tensors["x"])


class TestStats:
    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32]
    )
    @pytest.mark.parametrize("piece", [7, 1 << 22])
    def test_statistics_equal_numpys_for_any_block_size(self, tmp_path, monkeypatch, dtype, piece):
        monkeypatch.setattr(tensor_data, "PIECE", piece)
        tensor = (100 + 30 * torch.randn(10, 11)).to(dtype)
        tensor[0, :5] = 0
        found, array = stats_of(tensor, tmp_path), tensor.double().numpy()
        assert (found.minimum, found.maximum) == (array.min(), array.max())
        assert found.mean == pytest.approx(array.mean())
        assert found.std == pytest.approx(array.std())
        assert found.share_zero == pytest.approx((array == 0).mean())
        assert found.is_finite

    def test_nan_and_infinity_are_counted_and_left_out(self, tmp_path):
        found = stats_of(torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 3.0]), tmp_path)
        assert (found.n_nan, found.n_infinite, found.mean, found.std) == (1, 2, 2.0, 1.0)
        assert not found.is_finite
        nothing = stats_of(torch.full((2,), float("nan")), tmp_path)
        assert np.isnan(nothing.mean)

    def test_an_empty_tensor_and_a_scalar(self, tmp_path):
        assert np.isnan(stats_of(torch.empty(0, 3), tmp_path).minimum)
        assert stats_of(torch.tensor(2.0), tmp_path).maximum == 2.0

    def test_the_command_and_its_check(self, cli, tmp_path):
        folder = save_huggingface(lively_model(tiny_config()), tmp_path)
        result = cli("inspect", folder, "--tensor-stats")
        assert result.status == 0
        assert "h.1.mlp.c_proj.weight" in result.out
        assert cli("inspect", folder, "--check").status == 0
        state = load_file(folder / "model.safetensors")
        state["h.1.ln_2.bias"][3] = float("nan")
        save_file(state, folder / "model.safetensors")
        assert cli("inspect", folder, "--tensor-stats").status == 0
        result = cli("inspect", folder, "--check", "--json")
        assert result.status == 1
        assert "NaN or infinity in 1 tensor: h.1.ln_2.bias" in result.err
        assert json.loads(result.out)["fault"]

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
    def test_a_file_of_two_gigabytes_takes_little_memory(self, tmp_path):
        config = resolve_options("gpt2-medium", None, ["n_layers=36"]).config
        path = sparse_safetensors(tmp_path / "model.safetensors", config)
        assert path.stat().st_size > 2e9
        code = f"""
from gptcli.cli.app import run
assert run(["inspect", {str(path)!r}, "--tensor-stats", "-o", {str(tmp_path / "out")!r}]) == 0
from pathlib import Path
status = Path("/proc/self/status").read_text()
print(status.partition("VmHWM:")[2].split()[0])
"""
        peak_kib = int(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, timeout=300))
        assert peak_kib * 1024 < 600e6


class TestDiff:
    def test_layouts_do_not_matter(self, cli, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        first, second = save_huggingface(model, tmp_path / "a"), save_tutorial(model, tmp_path / "b")
        assert cli("inspect", first, "--diff", second).out == "all equal: 36 parameters\n"

    def test_differences_are_listed_with_their_size(self, cli, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        first = save_huggingface(model, tmp_path / "a")
        with torch.no_grad():
            model.trf_blocks[1].att.W_key.weight[2, 3] += 0.5
        second = save_tutorial(model, tmp_path / "b")
        record = json.loads(cli("inspect", first, "--diff", second, "--json").out)
        (row,) = [row for row in record["parameters"] if row["verdict"] != "equal"]
        assert row["name"] == "trf_blocks.1.att.W_key.weight"
        assert row["largest_absolute"] == pytest.approx(0.5, abs=1e-6)
        assert 0 < row["largest_relative"] <= 2

    def test_missing_tensors_other_shapes_and_unknown_layouts(self, cli, tmp_path):
        save_file(
            {"a": torch.ones(2), "b": torch.ones(3), "n": torch.tensor([float("nan")])},
            tmp_path / "1.safetensors",
        )
        save_file(
            {"a": torch.ones(3), "c": torch.ones(3), "n": torch.tensor([float("nan")])},
            tmp_path / "2.safetensors",
        )
        result = cli("inspect", tmp_path / "1.safetensors", "--diff", tmp_path / "2.safetensors", "--json")
        verdicts = {row["name"]: row["verdict"] for row in json.loads(result.out)["parameters"]}
        expected = {"a": "other shape", "b": "only in the first", "c": "only in the second", "n": "equal"}
        assert verdicts == expected
        assert cli("inspect", tmp_path / "1.safetensors", "--diff", tmp_path / "none").status == 1
