"""Small models for the tests of engines, and an engine with its kernels prepared."""

from pathlib import Path

import torch

from gptcli.engine.switch import Switch
from gptcli.weights.load import load_weights
from gptcli.weights.plan import plan_load
from tests.models import save_huggingface, tiny_config

VOCABULARY, CONTEXT = 120, 64


def config(**changes):
    return tiny_config(**{"vocab_size": VOCABULARY, "context_length": CONTEXT} | changes)


def by_columns(model, folder: Path):
    """Return the model as a Hugging Face file holds it: matrices transposed, query, key and value in one."""
    loaded = load_weights(plan_load(save_huggingface(model, folder), []), device="cpu", dtype=torch.float32)
    return loaded.model


def ready_switch(model) -> Switch:
    """Return the engine with its kernels prepared."""
    switch = Switch(model)
    switch.prepare(wait=True)
    assert switch.unavailable_reason is None
    return switch
