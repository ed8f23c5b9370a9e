"""Conversion between our config and a Hugging Face GPT-2 `config.json`; other arithmetic is refused."""

from collections.abc import Mapping
from typing import Any

from gptcli.config.activations import ACTIVATIONS, huggingface_activations
from gptcli.config.model_config import KEYS, ModelConfig, shorten_value
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
    "scale_attn_weights": "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx": "scale_attn_by_inverse_layer_idx",
    "eos_token_id": "eos_token_id",
    "bos_token_id": "bos_token_id",
}

# Other spellings of their keys (GPT2Config.attribute_map).
SPELLINGS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

# GPT2Config's defaults for keys that a file leaves out (transformers, configuration_gpt2.py). The tensors of
# a weights file show its sizes, but not its heads.
DEFAULT_SIZES = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12}
DEFAULTS: dict[str, Any] = {
    "n_head": 12,
    "resid_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "eos_token_id": 50256,
    "bos_token_id": 50256,
}

# Keys of arithmetic with the only values that we implement: the first is what we write.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
WRITTEN = ("model_type", "add_cross_attention")

OWN_KEYS = "gptcli"
END_KEYS = ("eos_token_id", "bos_token_id")  # what ends and begins a text


def is_huggingface(values: Mapping[str, Any], *, if_unclear: bool = False) -> bool:
    """Return whether the keys are Hugging Face's rather than ours; `if_unclear` if they can be both's."""
    theirs = {"model_type", "architectures", "transformers_version", *KEY_TABLE, *SPELLINGS} - set(KEYS)
    is_unclear = (set(KEYS) - set(KEY_TABLE)).isdisjoint(values)
    return "emb_dim" not in values and (not theirs.isdisjoint(values) or (if_unclear and is_unclear))


def from_huggingface(values: Mapping[str, Any], where: str, *, all_sizes: bool = True) -> dict[str, Any]:
    """Return our keys for a Hugging Face `config.json`; what it leaves out has GPT2Config's defaults.

    Without `all_sizes`, sizes that it leaves out are left out, for tensors to show. Raises one `ConfigError`
    that names every key with a value that is not implemented.
    """
    faults = [
        f"{key} is {shorten_value(values[key])}, and only {wanted[0]!r} is implemented"
        for key, wanted in REQUIRED.items()
        if key in values and values[key] not in wanted
    ]
    spelled = {SPELLINGS[key]: value for key, value in values.items() if key in SPELLINGS}
    theirs = DEFAULTS | (DEFAULT_SIZES if all_sizes else {}) | dict(values) | spelled
    activation, known = theirs["activation_function"], huggingface_activations()
    if not isinstance(activation, str) or activation not in known:
        faults.append(
            f"activation_function is {shorten_value(activation)}, and only {', '.join(known)} are implemented"
        )
    if faults:
        raise ConfigError(f"{where}: " + "; ".join(faults))
    theirs["activation_function"] = known[activation]
    if theirs.get("n_inner") is None:  # null means four times n_embd, as does an absent key
        theirs.pop("n_inner", None)
    ours = {our: theirs[key] for key, our in KEY_TABLE.items() if key in theirs}
    ours |= dict.fromkeys(("qkv_bias", "attn_out_bias", "norm_bias"), True)
    ours = within_vocabulary(ours, theirs.get("vocab_size"))
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
    result = {key: REQUIRED[key][0] for key in WRITTEN} | {key: values[our] for key, our in KEY_TABLE.items()}
    result |= dropouts | {"activation_function": activations[0]}
    result |= {"architectures": ["GPT2LMHeadModel"]}
    if config.tokenizer != "gpt2":
        result[OWN_KEYS] = {"tokenizer": config.tokenizer}
    return result


def within_vocabulary(ours: dict[str, Any], vocab_size: Any) -> dict[str, Any]:
    """Return our keys without end and begin tokens outside the vocabulary, which never come."""
    return ours | {key: _within(ours[key], vocab_size) for key in END_KEYS if key in ours}


def _within(tokens: Any, vocab_size: Any) -> Any:
    ids = tokens if isinstance(tokens, list) else [tokens]
    if any(type(each) is not int for each in (*ids, vocab_size)):
        return tokens
    kept = [each for each in ids if 0 <= each < vocab_size]
    return kept if isinstance(tokens, list) else next(iter(kept), None)
