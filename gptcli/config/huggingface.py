"""Conversion between our config and a Hugging Face GPT-2 `config.json`; other arithmetic is refused."""

from collections.abc import Mapping
from typing import Any

from gptcli.config.activations import ACTIVATIONS, huggingface_activations
from gptcli.config.model_config import ModelConfig
from gptcli.errors import ConfigError

# Their key → our key, for sizes and arithmetic. All other keys are about training or generation.
KEY_TABLE = {
    "vocab_size": "vocab_size",
    "n_positions": "context_length",
    "n_embd": "emb_dim",
    "n_head": "n_heads",
    "n_layer": "n_layers",
    "n_inner": "ffn_dim",
    "resid_pdrop": "drop_rate",
    "layer_norm_epsilon": "norm_eps",
    "activation_function": "activation",
    "tie_word_embeddings": "tie_embeddings",
    "eos_token_id": "eos_token_id",
}

# GPT2Config's defaults for keys that a file leaves out (transformers, configuration_gpt2.py).
DEFAULTS: dict[str, Any] = {
    "resid_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}

# Key → the only value that we implement.
REQUIRED = {
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}

OWN_KEYS = "gptcli"


def is_huggingface(values: Mapping[str, Any]) -> bool:
    """Return whether the keys are Hugging Face's rather than ours."""
    return "model_type" in values or "n_embd" in values


def from_huggingface(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return our keys for a Hugging Face `config.json`.

    Raises one `ConfigError` that names every key with a value that is not implemented.
    """
    faults = [
        f"{key} is {values[key]!r}, and only {wanted!r} is implemented"
        for key, wanted in REQUIRED.items()
        if key in values and values[key] != wanted
    ]
    theirs = DEFAULTS | dict(values)
    activation, known = theirs["activation_function"], huggingface_activations()
    if not isinstance(activation, str) or activation not in known:
        faults.append(f"activation_function is {activation!r}, and only {', '.join(known)} are implemented")
    if faults:
        raise ConfigError(f"{where}: " + "; ".join(faults))
    theirs["activation_function"] = known[activation]
    ours = {our: theirs[key] for key, our in KEY_TABLE.items() if theirs.get(key) is not None}
    ours |= dict.fromkeys(("qkv_bias", "attn_out_bias", "norm_bias"), True)
    ours["eos_token_id"] = _end_of_text(theirs)
    own = theirs.get(OWN_KEYS, {})
    if not isinstance(own, Mapping):
        raise ConfigError(f"{where}: {OWN_KEYS} must be a mapping of gptcli's own keys, got {own!r}")
    return ours | dict(own)


def to_huggingface(config: ModelConfig) -> dict[str, Any] | None:
    """Return the `config.json` that `transformers` reads, or None for a model that its GPT-2 cannot be.

    The tokenizer, where it is not GPT-2's, goes into a section `gptcli`.
    """
    values = config.model_dump()
    activations = ACTIVATIONS[config.activation].huggingface
    has_biases = config.qkv_bias and config.attn_out_bias and config.ffn_bias and config.norm_bias
    is_gpt2 = config.feed_forward == "mlp" and has_biases and not config.norm_unbiased
    if not is_gpt2 or not activations:
        return None
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.drop_rate)
    result = REQUIRED | {key: values[our] for key, our in KEY_TABLE.items()} | dropouts
    result |= {"activation_function": activations[0], "bos_token_id": config.eos_token_id}
    result |= {"architectures": ["GPT2LMHeadModel"]}
    if config.tokenizer != "gpt2":
        result[OWN_KEYS] = {"tokenizer": config.tokenizer}
    return result


def _end_of_text(theirs: Mapping[str, Any]) -> Any:
    """Return `eos_token_id` as one id, or None if it is outside the vocabulary, so that it can never come."""
    eos = theirs.get("eos_token_id", 50256)
    if isinstance(eos, list) and len(eos) == 1:
        eos = eos[0]
    vocab_size = theirs.get("vocab_size")
    if isinstance(eos, int) and isinstance(vocab_size, int) and eos >= vocab_size:
        return None
    return eos
