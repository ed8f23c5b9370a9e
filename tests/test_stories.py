"""The model that ships: the default of `generate`, small, with the same ids as in `transformers`."""

import json
import shutil

import pytest
import torch
from transformers import GPT2LMHeadModel

from gptcli.config.huggingface import to_huggingface
from gptcli.config.presets import shipped_weights
from gptcli.runtime import load
from gptcli.tokenizer import Tokenizer
from gptcli.weights.source import select_source
from tests.decoding import decode_ids

PROMPTS = ["Once upon a time", "The wolf said:", "", "naïve 中文 😀 \n\n"]


@pytest.fixture(scope="module")
def ready():
    return load(select_source(preset="stories"), device="cpu")


def test_its_weights_are_at_most_12_megabytes():
    assert shipped_weights("stories").stat().st_size <= 12_000_000


def test_it_is_the_default_and_one_line_says_so(cli):
    result = cli("generate", "Once upon a time", "-n", 12)
    assert result.status == 0
    (note,) = result.err.splitlines()
    assert "stories" in note
    assert "--weights takes a GPT-2" in note
    assert cli("generate", "Once upon a time", "-n", 1, "-p", "stories").err == ""
    assert cli("generate", "Once upon a time", "-n", 12, "-p", "stories", "--quiet").out == result.out
    record = json.loads(cli("generate", "Once upon a time", "-n", 12, "--json", "-q").out)
    assert record["model"]["preset"] == "stories"
    assert record["model"]["parameters"] == 5_853_184


def test_its_sizes_cannot_be_changed(cli):
    result = cli("generate", "Hi", "--set", "n_layers=3", "-q")
    assert (result.status, result.out) == (1, "")
    assert "leave the option out (it fits --preset stories), or name another model" in result.err


def test_params_and_inspect_still_show_the_tutorials_model(cli):
    assert cli("params").out.startswith("gpt-124m:")
    assert cli("inspect").out.startswith("gpt-124m:")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_transformers_on_the_same_file_gives_the_same_ids(ready, tmp_path, prompt):
    shutil.copy(shipped_weights("stories"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(to_huggingface(ready.config)))
    reference = GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokenizer = Tokenizer(ready.config)
    ids = tokenizer.encode(prompt) or [tokenizer.end_of_text]
    idx = torch.tensor([ids])
    out = reference.generate(
        idx,
        attention_mask=torch.ones_like(idx),
        max_new_tokens=100,
        do_sample=False,
        eos_token_id=-1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(out.logits).topk(2).values
    ours = decode_ids(ready.model, ids, 100)
    theirs = out.sequences[0, len(ids) :].tolist()
    differ = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    assert differ is None or best[differ, 0] - best[differ, 1] < 1e-5  # a tie: either is right


def test_it_writes_english(cli):
    text = cli("generate", "Once upon a time there was a", "-n", 60, "-q").out
    words = text.split()
    assert len(words) > 30
    assert len(set(words)) > 15
    assert sum(word.isascii() for word in words) / len(words) > 0.95
