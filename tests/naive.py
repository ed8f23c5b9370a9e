"""A GPT in NumPy, float64 and loops, from the formulas of the papers: slow, plain, without torch."""

import math

import numpy as np

from gptcli.config.model_config import ModelConfig


def naive_logits(config: ModelConfig, state: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Return the logits [T, V] of one sequence."""
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
    return np.stack(rows) * w[name + ".scale"] + w.get(name + ".shift", 0.0)


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
    if config.feed_forward == "moe":
        return np.stack([mixture(config, w, name, token[None])[0] for token in x])
    if config.feed_forward == "mlp":
        return two_layers(config, w, x, name + "layers.0", name + "layers.2")
    return gated(config, w, x, name + "gate_proj", name + "up_proj", name + "down_proj")


def act(config: ModelConfig, x: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda value: activation(config, value))(x)


def two_layers(config, w, x: np.ndarray, up: str, down: str) -> np.ndarray:
    return linear(w, down, act(config, linear(w, up, x)))


def gated(config, w, x: np.ndarray, gate: str, up: str, down: str) -> np.ndarray:
    return linear(w, down, act(config, linear(w, gate, x)) * linear(w, up, x))


def mixture(config: ModelConfig, w: dict[str, np.ndarray], name: str, token: np.ndarray) -> np.ndarray:
    """Return the output of a mixture for one token [1, C]."""
    scores = (token @ w[name + "gate.weight"].T)[0]
    best = sorted(range(len(scores)), key=lambda e: -scores[e])[: config.n_experts_per_token]
    among = range(len(scores)) if config.n_experts_per_token == 1 else best
    total = sum(math.exp(scores[e]) for e in among)
    y = np.zeros_like(token)
    is_gated = config.expert_feed_forward != "mlp"
    for e in best:
        fc1, fc2, fc3 = (f"{name}fc{n}.{e}" for n in (1, 2, 3))
        out = gated(config, w, token, fc1, fc2, fc3) if is_gated else two_layers(config, w, token, fc1, fc3)
        y = y + math.exp(scores[e]) / total * out
    for e in range(config.n_shared_experts):
        p = f"{name}shared.{e}."
        if is_gated:
            y = y + gated(config, w, token, p + "gate_proj", p + "up_proj", p + "down_proj")
        else:
            y = y + two_layers(config, w, token, p + "layers.0", p + "layers.2")
    return y


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def activation(config: ModelConfig, x: float) -> float:
    if config.activation == "swish":
        return x * sigmoid(config.swish_beta * x)
    return ACTIVATIONS[config.activation](x)


ACTIVATIONS = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "relu": lambda x: max(0.0, x),
    "gelu_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "sigmoid": sigmoid,
    "tanh": math.tanh,
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "identity": lambda x: x,
}
