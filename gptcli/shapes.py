"""Every parameter's name and shape, in plain Python: `params` sums them, the loader checks files by them."""

from typing import Literal, get_args

from gptcli.config import ModelConfig

Shape = tuple[int, ...]
Component = Literal[
    "token_embedding", "position_embedding", "attention", "feed_forward", "norms", "output_head"
]
COMPONENTS: tuple[Component, ...] = get_args(Component)

BLOCK = "trf_blocks.{i}."


def block_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters of one transformer block, named as inside `trf_blocks.{i}`, in the model's order."""
    C = config.emb_dim
    shapes: dict[str, Shape] = {}
    for name in ("W_query", "W_key", "W_value"):
        shapes |= _linear(f"att.{name}", C, C, config.qkv_bias)
    shapes |= _linear("att.out_proj", C, C, bias=True)
    shapes |= feed_forward_shapes(config)
    for norm in ("norm1", "norm2"):
        shapes |= _norm(norm, C)
    return shapes


def feed_forward_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters of one feed-forward (`ff.…`)."""
    C, F, bias = config.emb_dim, config.ffn_dim, config.ffn_bias
    return _linear("ff.layers.0", C, F, bias) | _linear("ff.layers.2", F, C, bias)


def outer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters outside the blocks; a tied head is the token embedding and has none of its own."""
    V, C = config.vocab_size, config.emb_dim
    shapes: dict[str, Shape] = {"tok_emb.weight": (V, C), "pos_emb.weight": (config.context_length, C)}
    shapes |= _norm("final_norm", C)
    if not config.tie_embeddings:
        shapes["out_head.weight"] = (V, C)
    return shapes


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """All parameters of the model: full name → shape."""
    shapes = outer_shapes(config)
    block = block_shapes(config)
    for i in range(config.n_layers):
        shapes |= {BLOCK.format(i=i) + name: shape for name, shape in block.items()}
    return shapes


def component_of(name: str) -> Component:
    """The component that a parameter is counted under."""
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


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.scale": (width,), f"{name}.shift": (width,)}
