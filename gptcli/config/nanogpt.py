"""The keys of nanoGPT's `model_args`, as its checkpoints and people's config files have them.

Source: Karpathy, nanoGPT, model.py (GPTConfig, GPT).
"""

from collections.abc import Mapping
from typing import Any

KEY_TABLE = {
    "vocab_size": "vocab_size",
    "block_size": "context_length",
    "n_embd": "emb_dim",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "dropout": "drop_rate",
}
BIASES = ("qkv_bias", "attn_out_bias", "ffn_bias", "norm_bias")

# What its code does and no key says; minGPT and llm.c use the same names with the tanh form.
ARITHMETIC = {"activation": "gelu"}


def is_nanogpt(values: Mapping[str, Any]) -> bool:
    """Return whether the keys are nanoGPT's."""
    return "block_size" in values and "n_embd" in values and "model_type" not in values


def from_nanogpt(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return our keys for nanoGPT's; its other keys are about training."""
    ours = {our: values[key] for key, our in KEY_TABLE.items() if key in values}
    biases = dict.fromkeys(BIASES, values.get("bias", True))
    return ours | biases | ARITHMETIC | {"tie_embeddings": True}
