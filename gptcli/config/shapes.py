"""The name and shape of every parameter, in plain Python: `params` adds them up, the loader checks files."""

from typing import Literal, get_args

from gptcli.config.model_config import ModelConfig

Shape = tuple[int, ...]
Component = Literal[
    "token_embedding", "position_embedding", "attention", "feed_forward", "norms", "output_head"
]
COMPONENTS: tuple[Component, ...] = get_args(Component)

EMBEDDINGS = ("tok_emb.weight", "pos_emb.weight")
ROUTER = ".ff.gate.weight"
BLOCK = "trf_blocks.{i}."


def block_shapes(config: ModelConfig, n_experts: int | None = None) -> dict[str, Shape]:
    """Return name → shape of one transformer block's parameters; names begin after `trf_blocks.{i}`.

    With `n_experts`, a mixture of experts has only that many, such as the ones that a token passes through.
    """
    C = config.emb_dim
    shapes: dict[str, Shape] = {}
    for name in ("W_query", "W_key", "W_value"):
        shapes |= _linear(f"att.{name}", C, C, config.qkv_bias)
    shapes |= _linear("att.out_proj", C, C, config.attn_out_bias)
    shapes |= feed_forward_shapes(config, n_experts)
    for norm in ("norm1", "norm2"):
        shapes |= _norm(norm, C, config.norm_bias)
    return shapes


def feed_forward_shapes(config: ModelConfig, n_experts: int | None = None) -> dict[str, Shape]:
    """Return name → shape of one feed-forward (`ff.…`); `n_experts` limits a mixture to that many experts."""
    shapes = _mixture(config, n_experts) if config.is_moe else _single(config, "ff.", config.feed_forward)
    if config.swish_learn_beta:
        shapes["ff.layers.1.beta" if config.feed_forward == "mlp" else "ff.activation.beta"] = ()
    return shapes


def _single(config: ModelConfig, prefix: str, kind: str) -> dict[str, Shape]:
    C, F, bias = config.emb_dim, config.ffn_dim, config.ffn_bias
    if kind == "mlp":
        return _linear(f"{prefix}layers.0", C, F, bias) | _linear(f"{prefix}layers.2", F, C, bias)
    gate, up = _linear(f"{prefix}gate_proj", C, F, bias), _linear(f"{prefix}up_proj", C, F, bias)
    return gate | up | _linear(f"{prefix}down_proj", F, C, bias)


def _mixture(config: ModelConfig, n_experts: int | None) -> dict[str, Shape]:
    """Return a mixture's router, its experts by the tutorial's names, and its shared experts.

    An expert is fc1 and fc3, with fc2 between them if it is gated.
    """
    C, F, bias = config.emb_dim, config.ffn_dim, config.ffn_bias
    shapes = _linear("ff.gate", C, config.n_experts, bias=False)
    n_routed = config.n_experts if n_experts is None else n_experts
    widths = (
        {"fc1": (C, F), "fc2": (C, F), "fc3": (F, C)} if config.is_gated else {"fc1": (C, F), "fc3": (F, C)}
    )
    for name, (inputs, outputs) in widths.items():
        for e in range(n_routed):
            shapes |= _linear(f"ff.{name}.{e}", inputs, outputs, bias)
    for e in range(config.n_shared_experts):
        shapes |= _single(config, f"ff.shared.{e}.", config.expert_feed_forward)
    return shapes


def outer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return name → shape of the parameters outside the blocks; a tied head has none of its own."""
    V, C = config.vocab_size, config.emb_dim
    shapes: dict[str, Shape] = {"tok_emb.weight": (V, C), "pos_emb.weight": (config.context_length, C)}
    shapes |= _norm("final_norm", C, config.norm_bias)
    if not config.tie_embeddings:
        shapes["out_head.weight"] = (V, C)
    return shapes


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return full name → shape of all parameters of the model."""
    shapes = outer_shapes(config)
    block = block_shapes(config)
    for i in range(config.n_layers):
        shapes |= {BLOCK.format(i=i) + name: shape for name, shape in block.items()}
    return shapes


def count_tensors(config: ModelConfig) -> int:
    """Return how many parameters `parameter_shapes` has, without listing them."""
    return len(outer_shapes(config)) + config.n_layers * len(block_shapes(config))


def is_quantized(name: str) -> bool:
    """Return whether a parameter becomes int8: the weight of a linear.

    Embeddings stay, because a step reads one row of them, and so do routers: rounding would change which
    expert they choose.
    """
    return name.endswith(".weight") and name not in EMBEDDINGS and not name.endswith(ROUTER)


def component_of(name: str) -> Component:
    """Return the component that a parameter belongs to."""
    if "norm" in name:
        return "norms"
    if "att." in name:
        return "attention"
    if "ff." in name:
        return "feed_forward"
    outer: dict[str, Component] = {
        "tok_emb.weight": "token_embedding",
        "pos_emb.weight": "position_embedding",
        "out_head.weight": "output_head",
    }
    return outer[name]


def _linear(name: str, inputs: int, outputs: int, bias: bool) -> dict[str, Shape]:
    weight: dict[str, Shape] = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight


def _norm(name: str, width: int, bias: bool) -> dict[str, Shape]:
    scale: dict[str, Shape] = {f"{name}.scale": (width,)}
    return scale | {f"{name}.shift": (width,)} if bias else scale
