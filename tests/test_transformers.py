"""Equal to `transformers`: the same files, logits within 1e-4, the 200 greedy ids of float64 arithmetic."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.runtime import load
from gptcli.weights.source import select_source
from tests.decoding import decode_ids
from tests.models import save_tutorial

NEW_TOKENS = 200

# All have 1,200 positions: 900 tokens and 200 new ones must fit, since transformers cannot slide.
SHAPES = {
    "one head": {"n_embd": 32, "n_head": 1, "n_layer": 2, "vocab_size": 301},
    "16 heads": {"n_embd": 64, "n_head": 16, "n_layer": 3, "vocab_size": 1000},
    "odd widths": {"n_embd": 35, "n_head": 7, "n_layer": 2, "vocab_size": 333, "n_inner": 51},
    "exact gelu": {"n_embd": 48, "n_head": 3, "vocab_size": 501, "activation_function": "gelu"},
    "untied": {"n_embd": 40, "n_head": 5, "n_layer": 2, "vocab_size": 400, "tie_word_embeddings": False},
    "gpt2-small": {},
}


def reference(shape: dict[str, object]) -> GPT2LMHeadModel:
    """Return a random model where every parameter matters: no bias is zero, no norm the identity."""
    torch.manual_seed(0)
    config = GPT2Config(**({"n_positions": 1200} | shape), bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    small = config.n_embd < 100
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
            elif small and ".h." in name:
                parameter *= 12
            elif name.endswith("wpe.weight"):
                parameter *= 8
    return model


@torch.inference_mode()
def choices(model: GPT2LMHeadModel, prompt: list[int], ids: list[int]) -> list[int]:
    """Return the token that a model chooses at every place of `ids`; they are its greedy ids if all agree."""
    logits = model(torch.tensor([prompt + ids])).logits[0]  # [T, V]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "small" in name else name for name in SHAPES]
)
def test_same_logits_and_ids_in_both_layouts(name, tmp_path):
    hf = reference(SHAPES[name])
    hf.save_pretrained(tmp_path / "hf")
    ours = load(select_source(tmp_path / "hf"), device="cpu")
    folder = save_tutorial(ours.model, tmp_path / "tutorial")
    tutorial = load(select_source(folder), device="cpu")
    exact = copy.deepcopy(hf).double()
    for length in (1, 7, 900):
        prompt = torch.randint(hf.config.vocab_size, (length,)).tolist()
        idx = torch.tensor([prompt])
        with torch.inference_mode():
            logits = ours.model(idx)
            assert logits.std() > 0.05
            torch.testing.assert_close(logits, hf(idx).logits, atol=1e-4, rtol=0)
            torch.testing.assert_close(tutorial.model(idx), logits, atol=1e-5, rtol=0)
        ids = decode_ids(None, prompt, NEW_TOKENS, engine=ours.engine)
        assert len(set(ids)) > 5  # not one token again and again
        assert ids == choices(exact, prompt, ids)
        assert decode_ids(None, prompt, NEW_TOKENS, engine=tutorial.engine) == ids
        if name != "gpt2-small":  # whose decoding in PyTorch takes a minute
            assert decode_ids(ours.model, prompt, NEW_TOKENS) == ids
