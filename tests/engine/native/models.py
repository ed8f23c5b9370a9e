"""Small random models as the native engine takes them: sizes, and arrays by the tutorial's names."""

from typing import Any

import numpy as np

from gptcli.config.model_config import ModelConfig, build_config
from gptcli.engine.native.arrays import Array
from gptcli.engine.native.model import NativeModel


def tiny_sizes(**changes: Any) -> ModelConfig:
    """Return the config of a small model with odd widths."""
    sizes: dict[str, Any] = {
        "vocab_size": 301,
        "context_length": 400,
        "emb_dim": 60,
        "n_heads": 5,
        "n_layers": 3,
        "drop_rate": 0.0,
        "qkv_bias": True,
        "ffn_dim": 170,
    }
    return build_config(sizes | changes, "test")


def random_parameters(sizes: ModelConfig, *, columns: bool = False, seed: int = 0) -> dict[str, Array]:
    """Return parameters in which no bias is zero and no norm the identity.

    By columns, query, key and value are slices of one matrix [C, 3C], as in Hugging Face's files.
    """
    random = np.random.default_rng(seed)
    C, F = sizes.emb_dim, sizes.ffn_dim

    def draw(*shape: int) -> Array:
        return (random.standard_normal(shape) * (0.3 if len(shape) == 1 else 0.15)).astype(np.float32)

    parameters = {"tok_emb.weight": draw(sizes.vocab_size, C)}
    parameters["pos_emb.weight"] = 8 * draw(sizes.context_length, C)  # so that the text does not repeat
    norms, linears = ["final_norm"], {}
    for layer in range(sizes.n_layers):
        block = f"trf_blocks.{layer}"
        norms += [f"{block}.norm1", f"{block}.norm2"]
        wide = draw(3 * C, C)
        for i, name in enumerate(("query", "key", "value")):
            linears[f"{block}.att.W_{name}"] = wide[i * C : (i + 1) * C]
        linears |= {f"{block}.att.out_proj": draw(C, C)}
        linears |= {f"{block}.ff.layers.0": draw(F, C), f"{block}.ff.layers.2": draw(C, F)}
        if columns:
            wide = np.ascontiguousarray(wide.T).T
            for i, name in enumerate(("query", "key", "value")):
                linears[f"{block}.att.W_{name}"] = wide[i * C : (i + 1) * C]
            for name in ("att.out_proj", "ff.layers.0", "ff.layers.2"):
                linears[f"{block}.{name}"] = np.ascontiguousarray(linears[f"{block}.{name}"].T).T
    for name in norms:
        parameters |= {f"{name}.scale": 1 + draw(C), f"{name}.shift": draw(C)}
    for name, weight in linears.items():
        parameters |= {f"{name}.weight": weight, f"{name}.bias": draw(len(weight))}
    return parameters


def decode_greedy(engine: NativeModel, prompt: list[int], n_tokens: int, **options: Any) -> list[int]:
    """Return the n_tokens most probable ids, one after the other."""
    cache = engine.new_cache(1, len(prompt) + n_tokens)
    ids, new = list[int](), prompt
    for _ in range(n_tokens):
        new = [int(engine.forward([new], cache, **options)[0].argmax())]
        ids += new
    return ids
