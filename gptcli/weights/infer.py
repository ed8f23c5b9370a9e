"""The config keys that a file's tensors show: sizes, biases, the kind of feed-forward."""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from gptcli.config.presets import ConfigSource, preset_names, preset_source, resolve
from gptcli.errors import ConfigError
from gptcli.weights.detect import DetectedLayout
from gptcli.weights.layouts import Layout

# Keys that the shapes of tensors show; the last two in a mixture of experts alone.
SIZE_KEYS = (
    "vocab_size",
    "context_length",
    "emb_dim",
    "n_layers",
    "ffn_dim",
    "n_experts",
    "n_shared_experts",
)
# Keys that are true if certain tensors exist, and the name of each key in messages.
PRESENCE_KEYS = {
    "qkv_bias": "qkv bias",
    "attn_out_bias": "bias of the attention's output",
    "ffn_bias": "ffn bias",
    "norm_bias": "norm bias",
    "swish_learn_beta": "learned swish beta",
}

_UP = re.compile(r"(layers\.0|gate_proj|fc1\.\d+)\.weight")
_GATED = re.compile(r"(shared\.\d+\.)?(up_proj|fc2\.\d+)\.")


def infer_from_tensors(detected: DetectedLayout) -> dict[str, Any]:
    """Infer config keys from the tensors' shapes and names; a key that they do not show is absent."""
    shapes = {target: match.target_shape() for target, match in detected.by_target.items()}
    blocks = [match.block for match in detected.matches if match.block is not None]
    inferred: dict[str, Any] = {"n_layers": max(blocks, default=-1) + 1}
    embedding = shapes.get("tok_emb.weight", shapes.get("out_head.weight", ()))
    if len(embedding) == 2:
        inferred["vocab_size"], inferred["emb_dim"] = embedding
    if len(position := shapes.get("pos_emb.weight", ())) == 2:
        inferred["context_length"] = position[0]
    feed_forward = {name.partition(".ff.")[2]: shape for name, shape in shapes.items() if ".ff." in name}
    ups = [shape for name, shape in feed_forward.items() if _UP.fullmatch(name)]
    if ups and inferred.get("emb_dim"):
        # By the number of elements, so that a transposed matrix is reported as such later.
        inferred["ffn_dim"] = prod(ups[0]) // inferred["emb_dim"]
    if "gate.weight" in feed_forward:
        inferred["n_experts"] = _count_numbered(feed_forward, "fc1")
        inferred["n_shared_experts"] = _count_numbered(feed_forward, "shared")
    inferred["qkv_bias"] = any(name.endswith("att.W_query.bias") for name in shapes)
    inferred["attn_out_bias"] = any(name.endswith("att.out_proj.bias") for name in shapes)
    inferred["norm_bias"] = any(name.endswith(".shift") for name in shapes)
    inferred["ffn_bias"] = any(name.endswith(".bias") for name in feed_forward)
    inferred["swish_learn_beta"] = any(name.endswith(".beta") for name in feed_forward)
    return inferred


def infer_feed_forward_family(detected: DetectedLayout) -> tuple[bool, bool]:
    """Return whether the feed-forward is a mixture of experts, and whether it, or each expert, is gated."""
    names = {target.partition(".ff.")[2] for target in detected.by_target if ".ff." in target}
    return "gate.weight" in names, any(_GATED.match(name) for name in names)


def assume_arithmetic(layout: Layout, sources: Sequence[ConfigSource]) -> ConfigSource:
    """Return the config keys that the layout's programs share, without those that a source declares."""
    declared = {key for source in sources for key in source.values}
    assumed = {key: value for key, value in layout.arithmetic.items() if key not in declared}
    return ConfigSource("weights", "", assumed)


def declared_by(source: ConfigSource) -> dict[str, Any]:
    """Return all keys that a source declares.

    A preset and a complete config file declare their defaults too, every other source only its own keys.
    """
    if source.origin not in ("preset", "file"):
        return dict(source.values)
    try:
        config = resolve([source]).config
    except ConfigError:  # an incomplete file: the weights file gives the rest
        return dict(source.values)
    declared = config.model_dump()
    if config.is_moe:
        return declared
    return {key: value for key, value in declared.items() if "expert" not in key}


def fitting_preset(inferred: Mapping[str, Any]) -> str | None:
    """Return the preset with exactly these sizes; among several, one with the same biases and head."""
    candidates = []
    for name in preset_names():
        declared = declared_by(preset_source(name))
        if all(declared.get(key) == inferred.get(key) for key in SIZE_KEYS):
            n_equal = sum(declared[key] == inferred.get(key) for key in ("qkv_bias", "tie_embeddings"))
            candidates.append((-n_equal, name))
    return min(candidates)[1] if candidates else None


def _count_numbered(names: Mapping[str, Any], module: str) -> int:
    """Return how many numbered submodules a module has."""
    numbers = [int(found[1]) for name in names if (found := re.match(rf"{module}\.(\d+)\.", name))]
    return max(numbers, default=-1) + 1
