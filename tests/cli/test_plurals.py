"""Messages with a count of one are in the singular."""

import pytest
import torch
from safetensors.torch import save_file

from gptcli.errors import count
from tests.models import tiny_config, tiny_values, write_yaml

MIXTURE = ["feed_forward=moe", "n_experts=1", "n_experts_per_token=1"]


@pytest.fixture
def config(tmp_path):
    values = tiny_values(vocab_size=50257, n_heads=1, n_layers=1)
    return write_yaml(tmp_path / "one.yaml", values)


def test_a_count_is_one_or_many():
    assert [count(n, "head") for n in (0, 1, 2, 2048)] == ["0 heads", "1 head", "2 heads", "2,048 heads"]


def test_params_count_one_layer_one_head_one_expert_and_one_token(cli, config):
    out = cli("params", "-c", config, "--set", "context_length=1", *flags(MIXTURE)).out
    assert out.startswith("config: 1 layer, width 24, 1 head, 1 expert ")
    assert "key/value cache, 1 token " in out


def test_inspect_counts_one_tensor_in_one_file(cli, tmp_path):
    file = tmp_path / "one.safetensors"
    save_file({"x": torch.tensor([torch.nan])}, file)
    assert f"{file}: 1 tensor, 4 bytes in 1 file\n" in cli("inspect", file).out
    assert "NaN or infinity in 1 tensor: x" in cli("inspect", file, "--check").err


def test_inspect_counts_one_token(cli, config):
    assert "batch of 2 × 1 token\n" in cli("inspect", "-c", config, "--shapes", "--tokens", 1).out
    result = cli("inspect", "-c", config, "--gradients", "--prompt", "a")
    assert result.err == f"error: --prompt of 1 token: the loss needs 2 to {tiny_config().context_length}\n"


def test_generate_counts_one_token(cli, config):
    result = cli("generate", "a", "-c", config, "-n", 2, "--stats", "--set", "context_length=1")
    assert "note: prompt of 1 token, context of 1, room for 1:" in result.err
    assert "prefill 1 token " in result.err
    assert "decode 1 token " in result.err


def test_a_batch_counts_one_record_one_token_and_one_prompt(cli, config, tmp_path):
    source, target = tmp_path / "p.txt", tmp_path / "r.jsonl"
    source.write_text("a b c\n")
    command = ("generate", "-c", config, "-i", source, "-o", target, "-n", 1)
    result = cli(*command, "--stats", "--set", "context_length=2")
    assert "· 1 record, 1 token in" in result.err
    assert "warning: 1 prompt longer than the context of 2:" in result.err
    again = cli(*command, "--resume", "--set", "context_length=2")
    assert f"note: {target} holds 1 record already\n" in again.err
    source.write_text("{\n")
    wrong = cli("generate", "-c", config, "-i", source, "--input-format", "jsonl", "--json", "-q")
    assert wrong.err == "error: errors in 1 of 1 record\n"


def flags(assignments: list[str]) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]
