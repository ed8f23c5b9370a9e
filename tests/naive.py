"""A GPT in NumPy, float64 and loops, written from the formulas of the papers: slow, plain, without torch."""

import math

import numpy as np

from gptcli.config import ModelConfig


def naive_logits(config: ModelConfig, state: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Logits [T, V] of one sequence."""
    w = {name: array.astype(np.float64) for name, array in state.items()}
    x = np.stack([w["tok_emb.weight"][token] + w["pos_emb.weight"][t] for t, token in enumerate(ids)])
    for i in range(config.n_layers):
        p = f"trf_blocks.{i}."
        x = x + attention(config, w, p + "att.", norm(config, w, p + "norm1", x))
        x = x + feed_forward(config, w, p + "ff.", norm(config, w, p + "norm2", x))
    x = norm(config, w, "final_norm", x)
    return x @ w["tok_emb.weight" if config.tie_embeddings else "out_head.weight"].T


def norm(config: ModelConfig, w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    rows = []
    for row in x:
        mean = sum(row) / len(row)
        divisor = len(row) - 1 if config.norm_unbiased else len(row)
        variance = sum((value - mean) ** 2 for value in row) / divisor
        rows.append((row - mean) / math.sqrt(variance + config.norm_eps))
    return np.stack(rows) * w[name + ".scale"] + w[name + ".shift"]


def linear(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)


def attention(config: ModelConfig, w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    query, key, value = (linear(w, name + part, x) for part in ("W_query", "W_key", "W_value"))
    width = config.emb_dim // config.n_heads
    out = np.zeros_like(x)
    for head in range(config.n_heads):
        columns = slice(head * width, (head + 1) * width)
        for t in range(len(x)):
            scores = [query[t, columns] @ key[s, columns] / math.sqrt(width) for s in range(t + 1)]
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            out[t, columns] = sum(weights[s] * value[s, columns] for s in range(t + 1))
    return linear(w, name + "out_proj", out)


def feed_forward(config: ModelConfig, w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    hidden = np.vectorize(ACTIVATIONS[config.activation])(linear(w, name + "layers.0", x))
    return linear(w, name + "layers.2", hidden)


ACTIVATIONS = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(0.0, x),
}
