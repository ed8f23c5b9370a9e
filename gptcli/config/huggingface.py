"""A Hugging Face GPT-2 `config.json`, read as our config; what would change the arithmetic is refused."""

from collections.abc import Mapping
from typing import Any

from gptcli.config.choices import ACTIVATION_ALIASES
from gptcli.config.model_config import ModelConfig
from gptcli.errors import ConfigError

# Their key → our key. Sizes and arithmetic; everything else in the file is about training or generation.
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

# transformers' ACT2FN: their name → ours.
ACTIVATION_TABLE = ACTIVATION_ALIASES | {
    "gelu": "gelu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "silu": "silu",
    "swish": "silu",
    "linear": "identity",
}

# What GPT2Config means where a file leaves a key out (transformers, configuration_gpt2.py).
DEFAULTS: dict[str, Any] = {
    "resid_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
}

# Key → the one value with which the model is the model we implement.
FIXED = {
    "model_type": "gpt2",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}

OWN_KEYS = "gptcli"


def is_huggingface(values: Mapping[str, Any]) -> bool:
    """Whether the keys are Hugging Face's rather than ours."""
    return "model_type" in values or "n_embd" in values


def from_huggingface(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Our keys for a Hugging Face `config.json`; one `ConfigError` names every key that we cannot honour."""
    faults = [
        f"{key} is {values[key]!r}, and only {wanted!r} is implemented"
        for key, wanted in FIXED.items()
        if key in values and values[key] != wanted
    ]
    theirs = DEFAULTS | dict(values)
    activation = theirs["activation_function"]
    if not isinstance(activation, str) or activation not in ACTIVATION_TABLE:
        faults.append(
            f"activation_function is {activation!r}, and only {', '.join(ACTIVATION_TABLE)} are implemented"
        )
    if faults:
        raise ConfigError(f"{where}: " + "; ".join(faults))
    theirs["activation_function"] = ACTIVATION_TABLE[activation]
    ours = {our: theirs[key] for key, our in KEY_TABLE.items() if theirs.get(key) is not None}
    ours["qkv_bias"] = True
    ours["eos_token_id"] = _end_of_text(theirs)
    own = theirs.get(OWN_KEYS, {})
    if not isinstance(own, Mapping):
        raise ConfigError(f"{where}: {OWN_KEYS} must be a mapping of gptcli's own keys, got {own!r}")
    return ours | dict(own)


def to_huggingface(config: ModelConfig) -> dict[str, Any] | None:
    """The `config.json` that `transformers` reads, or None for a model that its GPT-2 is not.

    Keys that only gptcli knows, where they are not the default, stand under `gptcli`.
    """
    values = config.model_dump()
    theirs = {their: name for their, name in ACTIVATION_TABLE.items() if name == config.activation}
    is_gpt2 = (
        config.feed_forward == "mlp" and config.qkv_bias and config.ffn_bias and not config.norm_unbiased
    )
    if not is_gpt2 or not theirs:
        return None
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.drop_rate)
    result = FIXED | {key: values[our] for key, our in KEY_TABLE.items()} | dropouts
    result |= {"activation_function": next(iter(theirs)), "bos_token_id": config.eos_token_id}
    result |= {"architectures": ["GPT2LMHeadModel"]}
    if config.tokenizer != "gpt2":
        result[OWN_KEYS] = {"tokenizer": config.tokenizer}
    return result


def _end_of_text(theirs: Mapping[str, Any]) -> Any:
    """`eos_token_id` as one id; an id outside the vocabulary can never come, so there is none."""
    eos = theirs.get("eos_token_id", 50256)
    if isinstance(eos, list) and len(eos) == 1:
        eos = eos[0]
    vocab_size = theirs.get("vocab_size")
    if isinstance(eos, int) and isinstance(vocab_size, int) and eos >= vocab_size:
        return None
    return eos
