"""`params --compare-ffn`: every kind of feed-forward at the width of one model."""

from collections.abc import Mapping
from math import prod
from typing import Any

from gptcli.cli.table import table
from gptcli.config.dtypes import DTYPES
from gptcli.config.model_config import ModelConfig, build_config
from gptcli.config.shapes import Shape, feed_forward_shapes

# The papers' name of each kind, and the config keys that select it.
KINDS: dict[str, dict[str, Any]] = {
    "mlp, ReLU": {"feed_forward": "mlp", "activation": "relu"},
    "mlp, GELU": {"feed_forward": "mlp", "activation": "gelu_tanh"},
    "GLU": {"feed_forward": "glu"},
    "bilinear": {"feed_forward": "bilinear"},
    "ReGLU": {"feed_forward": "reglu"},
    "GEGLU": {"feed_forward": "geglu"},
    "SwiGLU": {"feed_forward": "swiglu"},
    "MoE, 8 × SwiGLU, 2 per token": {"feed_forward": "moe", "n_experts": 8, "n_experts_per_token": 2},
}
WEIGHT_BYTES = DTYPES["float32"].n_bytes


def compare_ffn_records(config: ModelConfig) -> list[dict[str, Any]]:
    """Return one record per kind: the sizes of one layer's feed-forward, and the cost of a token in it.

    FLOPs are 2 per weight of a matrix product. Bytes are those of the float32 weights that one token uses.
    """
    sizes = {key: getattr(config, key) for key in ("vocab_size", "context_length", "emb_dim", "n_heads")}
    sizes |= {key: getattr(config, key) for key in ("n_layers", "drop_rate", "qkv_bias")}
    records = []
    for name, keys in KINDS.items():
        kind = build_config(sizes | keys, name)
        active = feed_forward_shapes(kind, kind.n_experts_per_token)
        records.append(
            {
                "kind": name,
                **keys,
                "ffn_dim": kind.ffn_dim,
                "parameters_per_layer": _count(feed_forward_shapes(kind)),
                "active_per_layer": _count(active),
                "flops_per_token": 2 * sum(prod(shape) for shape in active.values() if len(shape) == 2),
                "weight_bytes_read_per_token": WEIGHT_BYTES * _count(active),
            }
        )
    return records


def compare_ffn_table(config: ModelConfig) -> str:
    """Return the records as a table for people."""
    headers = ("feed-forward", "ffn_dim", "parameters", "active", "FLOPs/token", "bytes read/token")
    keys = ("parameters_per_layer", "active_per_layer", "flops_per_token", "weight_bytes_read_per_token")
    rows = [
        (record["kind"], f"{record['ffn_dim']:,}", *(f"{record[key]:,}" for key in keys))
        for record in compare_ffn_records(config)
    ]
    return f"one layer's feed-forward at width {config.emb_dim}\n\n" + table(
        headers, rows, numbers=range(1, 6)
    )


def _count(shapes: Mapping[str, Shape]) -> int:
    return sum(map(prod, shapes.values()))
