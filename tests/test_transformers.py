"""Equal to `transformers`: the same files, logits within 1e-4, the same 200 greedy ids."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.runtime import load
from gptcli.weights.source import select_source
from tests.decoding import decode_tokens
from tests.models import save_tutorial

NEW_TOKENS = 200
# If the two largest logits of the reference are this close, either id is right.
TIE = 1e-5

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
def reference_ids(model: GPT2LMHeadModel, prompt: list[int]) -> tuple[list[int], list[float]]:
    """Return the greedy ids of `transformers`, each with the gap between its two largest logits."""
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(out.logits).topk(2).values  # [NEW_TOKENS, 2]
    return out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist()


def assert_same_ids(model, prompt: list[int], expected: list[int], gaps: list[float]) -> None:
    start = 0
    while (
        start < NEW_TOKENS
    ):  # at a tie either id is right, and the comparison continues with the reference's
        steps = decode_tokens(model, prompt + expected[:start], NEW_TOKENS - start)
        got = [step.token_id for step in steps]
        wrong = next((i for i, (a, b) in enumerate(zip(got, expected[start:], strict=True)) if a != b), None)
        if wrong is None:
            return
        assert gaps[start + wrong] < TIE, f"token {start + wrong} differs and is no tie"
        start += wrong + 1


@pytest.mark.parametrize("name", SHAPES)
def test_same_logits_and_ids_in_both_layouts(name, tmp_path):
    hf = reference(SHAPES[name])
    hf.save_pretrained(tmp_path / "hf")
    ours = load(select_source(tmp_path / "hf"), device="cpu")
    folder = save_tutorial(ours.model, tmp_path / "tutorial")
    tutorial = load(select_source(folder), device="cpu")
    vocab_size = hf.config.vocab_size
    for length in (1, 7, 900):
        prompt = torch.randint(vocab_size, (length,)).tolist()
        idx = torch.tensor([prompt])
        with torch.inference_mode():
            logits = ours.model(idx)
            assert logits.std() > 0.05
            torch.testing.assert_close(logits, hf(idx).logits, atol=1e-4, rtol=0)
            torch.testing.assert_close(tutorial.model(idx), logits, atol=1e-5, rtol=0)
        expected, gaps = reference_ids(hf, prompt)
        assert len(set(expected)) > 5  # not one token again and again
        assert_same_ids(ours.model, prompt, expected, gaps)
        assert_same_ids(tutorial.model, prompt, expected, gaps)
