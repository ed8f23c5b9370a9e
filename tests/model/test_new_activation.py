"""A new activation needs a class in `model/activations.py` and a line in the table: one is added and used."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptcli.config.activations import ACTIVATIONS, Activation
from gptcli.config.model_config import build_config
from gptcli.errors import ConfigError
from gptcli.model import activations
from gptcli.model.init import random_model
from gptcli.tokenizer import Tokenizer
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from gptcli.weights.save import save_model
from tests.models import tiny_config, tiny_values, write_yaml

VALUES = tiny_values(vocab_size=50257, activation="mish")
N_NEW = 12


class Mish(nn.Module):
    """x·tanh(ln(1 + eˣ)). Source: Misra 2019."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(torch.log1p(torch.exp(x)))


@pytest.fixture
def mish(monkeypatch):
    monkeypatch.setattr(activations, "Mish", Mish, raising=False)
    monkeypatch.setitem(ACTIVATIONS, "mish", Activation("Mish", "Mish (new)", ("mish",)))


def test_an_activation_that_is_not_in_the_table_is_refused(cli, tmp_path):
    with pytest.raises(ConfigError, match="or 'identity', got 'mish'"):
        build_config(VALUES, "test")
    assert cli("generate", "Hi", "-c", write_yaml(tmp_path / "c.yaml", VALUES)).status == 2
    assert cli("plot-activation", "mish").status == 2


@pytest.mark.usefixtures("mish")
def test_a_new_activation_decodes_like_pytorchs(cli, tmp_path):
    path = write_yaml(tmp_path / "c.yaml", VALUES)
    result = cli("generate", "Hi", "-c", path, "--seed", 5, "-n", N_NEW, "--json", "--ignore-eos")
    assert result.status == 0, result.err
    reference = random_model(build_config(VALUES | {"activation": "relu"}, "test"), 5).eval()
    for block in reference.trf_blocks:
        block.ff.layers[1] = nn.Mish()
    ids = Tokenizer(reference.config).encode("Hi")
    n_prompt = len(ids)
    with torch.inference_mode():
        for _ in range(N_NEW):
            ids.append(int(reference(torch.tensor([ids]))[0, -1].argmax()))
    assert json.loads(result.out)["completion_ids"] == ids[n_prompt:]


@pytest.mark.usefixtures("mish")
def test_a_new_activation_is_drawn(cli):
    result = cli("plot-activation", "Mish", "--json", "--points", 7)
    assert result.status == 0, result.err
    record = json.loads(result.out)
    expected = F.mish(torch.tensor(record["x"], dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(record["y"]["mish"], dtype=torch.float64), expected)
    assert cli("plot-activation", "mish").out.startswith("Mish (new) activation function\n")


@pytest.mark.usefixtures("mish")
def test_a_new_activation_is_saved_and_loaded_by_its_hugging_face_name(tmp_path):
    config = tiny_config(activation="mish")
    save_model(random_model(config, 0), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["activation_function"] == "mish"
    loaded = load_weights(plan_load(tmp_path, []), device=torch.device("cpu"), dtype=torch.float32)
    assert isinstance(loaded.model.trf_blocks[0].ff.layers[1], Mish)
