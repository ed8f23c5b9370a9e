"""What the tensors of a file say about the model: its sizes, its biases, its head."""

from collections.abc import Mapping
from math import prod
from typing import Any

from gptcli.presets import Layer, preset_layer, preset_names, resolve
from gptcli.weights.recognise import Recognised

# The keys that the shapes of tensors settle.
SIZE_KEYS = ("vocab_size", "context_length", "emb_dim", "n_layers", "ffn_dim")


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
    first = [name for name in shapes if name.endswith("ff.layers.0.weight")]
    if first and facts.get("emb_dim"):
        # by the number of elements: a matrix that lies the other way round is told as such later
        facts["ffn_dim"] = prod(shapes[first[0]]) // facts["emb_dim"]
    facts["qkv_bias"] = any(name.endswith("att.W_query.bias") for name in shapes)
    facts["ffn_bias"] = any(name.endswith("ff.layers.0.bias") for name in shapes)
    return facts


def claims_of(layer: Layer) -> dict[str, Any]:
    """The sizes that a layer asks for; a feed-forward width left out means four times the embedding's."""
    values = dict(layer.values)
    if isinstance(values.get("emb_dim"), int):
        values.setdefault("ffn_dim", 4 * values["emb_dim"])
    return {key: values[key] for key in (*SIZE_KEYS, "n_heads") if key in values}


def fitting_preset(facts: Mapping[str, Any]) -> str | None:
    """The preset with exactly these sizes; of several the one that agrees in biases and head too."""
    candidates = []
    for name in preset_names():
        config = resolve([preset_layer(name)]).config.model_dump()
        if all(config[key] == facts.get(key) for key in SIZE_KEYS):
            agrees = sum(config[key] == facts.get(key) for key in ("qkv_bias", "tie_embeddings"))
            candidates.append((-agrees, name))
    return min(candidates)[1] if candidates else None
