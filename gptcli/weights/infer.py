"""What the tensors of a file say about the model: its sizes, its biases, its kind of feed-forward."""

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from gptcli.config.presets import Layer, preset_layer, preset_names, resolve
from gptcli.errors import ConfigError
from gptcli.weights.detect import Recognised

# Keys that the shapes of tensors settle; the last two in a mixture of experts alone.
SIZE_KEYS = (
    "vocab_size",
    "context_length",
    "emb_dim",
    "n_layers",
    "ffn_dim",
    "n_experts",
    "n_shared_experts",
)
# Keys that tensors settle by being there, and what to call them.
PRESENCE_KEYS = {"qkv_bias": "qkv bias", "ffn_bias": "ffn bias", "swish_learn_beta": "learned swish beta"}

_UP = re.compile(r"(layers\.0|gate_proj|fc1\.\d+)\.weight")
_GATED = re.compile(r"(shared\.\d+\.)?(up_proj|fc2\.\d+)\.")


def facts_of(recognised: Recognised) -> dict[str, Any]:
    """Config keys that the tensors' shapes and names settle; what cannot be seen (the heads) is absent."""
    shapes = {target: match.target_shape() for target, match in recognised.by_target.items()}
    blocks = [match.block for match in recognised.matches if match.block is not None]
    facts: dict[str, Any] = {"n_layers": max(blocks, default=-1) + 1}
    embedding = shapes.get("tok_emb.weight", shapes.get("out_head.weight", ()))
    if len(embedding) == 2:
        facts["vocab_size"], facts["emb_dim"] = embedding
    if len(position := shapes.get("pos_emb.weight", ())) == 2:
        facts["context_length"] = position[0]
    inside = {name.partition(".ff.")[2]: shape for name, shape in shapes.items() if ".ff." in name}
    ups = [shape for name, shape in inside.items() if _UP.fullmatch(name)]
    if ups and facts.get("emb_dim"):
        # by the number of elements: a matrix that lies the other way round is told as such later
        facts["ffn_dim"] = prod(ups[0]) // facts["emb_dim"]
    if "gate.weight" in inside:
        facts |= {"n_experts": _count(inside, "fc1"), "n_shared_experts": _count(inside, "shared")}
    facts["qkv_bias"] = any(name.endswith("att.W_query.bias") for name in shapes)
    facts["ffn_bias"] = any(name.endswith(".bias") for name in inside)
    facts["swish_learn_beta"] = any(name.endswith(".beta") for name in inside)
    return facts


def feed_forward_family(recognised: Recognised) -> tuple[bool, bool]:
    """Whether the feed-forward is a mixture of experts, and whether it, or each expert, is gated."""
    inside = {target.partition(".ff.")[2] for target in recognised.by_target if ".ff." in target}
    return "gate.weight" in inside, any(_GATED.match(name) for name in inside)


def said_by(layer: Layer) -> dict[str, Any]:
    """All that a layer says: a preset or a whole config file its defaults too, others what they name."""
    if layer.origin not in ("preset", "file"):
        return dict(layer.values)
    try:
        config = resolve([layer]).config
    except ConfigError:  # not whole: it leaves to the weights file what that shows
        return dict(layer.values)
    said = config.model_dump()
    return said if config.is_moe else {key: value for key, value in said.items() if "expert" not in key}


def fitting_preset(facts: Mapping[str, Any]) -> str | None:
    """The preset with exactly these sizes; of several the one that agrees in biases and head too."""
    candidates = []
    for name in preset_names():
        said = said_by(preset_layer(name))
        if all(said.get(key) == facts.get(key) for key in SIZE_KEYS):
            agrees = sum(said[key] == facts.get(key) for key in ("qkv_bias", "tie_embeddings"))
            candidates.append((-agrees, name))
    return min(candidates)[1] if candidates else None


def _count(inside: Mapping[str, Any], module: str) -> int:
    """How many numbered parts a module has."""
    numbers = [int(found[1]) for name in inside if (found := re.match(rf"{module}\.(\d+)\.", name))]
    return max(numbers, default=-1) + 1
