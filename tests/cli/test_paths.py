"""Paths as scripts and people give them: empty variables, the home folder, names that look like output."""

import pytest
import torch
from safetensors.torch import save_file

import gptcli
from gptcli.errors import UsageError
from tests.models import huggingface_state, lively_model, save_huggingface, tiny_config

FORGED = "x\nerror: all is well\u202e\t\u2066"


@pytest.fixture
def folder(tmp_path):
    model = lively_model(tiny_config(vocab_size=50257, tie_embeddings=True))
    return save_huggingface(model, tmp_path / "model")


class TestEmpty:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("generate", "Hi", "-w", ""),
            ("generate", "Hi", "--weights="),
            ("generate", "Hi", "-c", ""),
            ("generate", "Hi", "-o", ""),
            ("generate", "-i", ""),
            ("inspect", ""),
            ("inspect", "-w", "x", "--diff", ""),
            ("params", "--config", ""),
            ("params", "--output", ""),
        ],
        ids=" ".join,
    )
    def test_an_unset_variable_is_wrong_usage_not_the_working_folder(self, cli, arguments):
        result = cli(*arguments)
        assert result.status == 2
        assert "expected a path, got an empty text" in result.err
        assert result.err.count("\n") == 1

    def test_in_python_too(self):
        with pytest.raises(UsageError, match="got an empty text"):
            gptcli.load_model("")


class TestHome:
    def test_weights_and_output_begin_at_home(self, cli, folder, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        named = cli("generate", "Hi", "-w", folder, "-n", 3, "-q").out
        assert cli("generate", "Hi", "--weights=~/model", "-n", 3, "-q", "--output", "~/x.txt").status == 0
        assert (tmp_path / "x.txt").read_text() == named
        assert gptcli.load_model("~/model").config.emb_dim == 24

    def test_a_file_whose_name_begins_like_a_user_is_read(self, cli, folder, monkeypatch):
        monkeypatch.chdir(folder)
        (folder / "model.safetensors").rename(folder / "~nobody-here.safetensors")
        assert cli("inspect", "~nobody-here.safetensors").status == 0


class TestForgedLines:
    def names_of(self, cli, path, status) -> str:
        result = cli("inspect", path)
        assert result.status == status
        for line in (*result.out.split("\n"), *result.err.split("\n")):
            assert not line.startswith("error: all is well")
        assert "\u202e" not in result.out + result.err
        assert "\u2066" not in result.out + result.err
        assert "x\\nerror: all is well\\u202e" in result.out
        return result.err

    def test_the_name_of_a_tensor(self, cli, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        save_file(huggingface_state(model) | {FORGED: torch.ones(1)}, folder / "model.safetensors")
        error = self.names_of(cli, folder, 1)
        assert error.count("\n") == 1
        assert "1 unexpected: x\\nerror: all is well" in error

    def test_a_head_that_a_note_names(self, cli, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        save_file(
            huggingface_state(model) | {f"v_head.{FORGED}": torch.ones(1)}, folder / "model.safetensors"
        )
        assert "not used: v_head.x\\nerror: all is well" in self.names_of(cli, folder, 0)

    def test_metadata(self, cli, tmp_path):
        model = lively_model(tiny_config(tie_embeddings=True))
        folder = save_huggingface(model, tmp_path)
        save_file(huggingface_state(model), folder / "model.safetensors", metadata={"a": FORGED})
        self.names_of(cli, folder, 0)

    def test_a_path(self, cli, tmp_path):
        error = cli("inspect", tmp_path / FORGED).err
        assert error.count("\n") == 1
        assert "x\\nerror: all is well\\u202e" in error
