"""The costs of a model, from shapes alone: parameters, bytes, floating-point operations, key/value cache."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gptcli.config.dtypes import DTYPES
from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import COMPONENTS, Component, Shape, block_shapes, component_of, outer_shapes

# The dtypes whose costs are shown.
BYTES_PER_ELEMENT = {name: DTYPES[name].n_bytes for name in ("float32", "bfloat16", "int8")}


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one forward pass, per token; a multiply-add counts as two."""

    forward_per_token: int
    forward_per_token_without_attention: int


def count_parameters(config: ModelConfig) -> int:
    """Return the model's parameters; a head that is tied to the token embedding counts once."""
    return sum(parameters_by_component(config).values())


def count_active_parameters(config: ModelConfig) -> int:
    """Return the parameters that one token passes through; in a mixture only the chosen experts count."""
    held, used = block_shapes(config).values(), active_block_shapes(config).values()
    idle = sum(map(prod, held)) - sum(map(prod, used))
    return count_parameters(config) - idle * config.n_layers


def active_block_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return name → shape of the parameters of one block that one token passes through."""
    return block_shapes(config, config.n_experts_per_token)


def parameters_by_component(config: ModelConfig) -> Mapping[Component, int]:
    """Return the parameters of each component, over all blocks; 0 for a tied head."""
    counts: Counter[Component] = Counter(dict.fromkeys(COMPONENTS, 0))
    for name, shape in outer_shapes(config).items():
        counts[component_of(name)] += prod(shape)
    for name, shape in block_shapes(config).items():
        counts[component_of(name)] += prod(shape) * config.n_layers
    return counts


def parameter_variants(config: ModelConfig) -> dict[str, int]:
    """Return the count with the head tied and untied, each also without query, key and value biases.

    Papers and the tutorial publish different ones of these for the same model: GPT-2 small is 124,439,808
    (tied), and 163,009,536 in the tutorial (untied, no bias).
    """

    def count(tie_embeddings: bool, qkv_bias: bool) -> int:
        return count_parameters(
            config.model_copy(update={"tie_embeddings": tie_embeddings, "qkv_bias": qkv_bias})
        )

    return {
        "tied": count(True, True),
        "untied": count(False, True),
        "tied_without_qkv_bias": count(True, False),
        "untied_without_qkv_bias": count(False, False),
    }


def weight_bytes(config: ModelConfig) -> dict[str, int]:
    """Return the bytes of all parameters in each dtype of `BYTES_PER_ELEMENT`."""
    total = count_parameters(config)
    return {dtype: total * size for dtype, size in BYTES_PER_ELEMENT.items()}


def kv_bytes_per_token(config: ModelConfig, element_bytes: int = 4) -> int:
    """Return the bytes of one token in the key/value cache: a key and a value of C elements in each layer."""
    return 2 * config.n_layers * config.emb_dim * element_bytes


def flops(config: ModelConfig) -> Flops:
    """Return the forward operations per token at full context: 2 per matmul weight, 4·L·S·C for attention.

    In a mixture of experts, only the weights that one token passes through count.

    A matmul touches each weight with one multiply and one add. Attention adds, in every layer, S·C
    multiply-adds for the scores and S·C for the weighted sum of values; S is the context length. The head's
    V·C is counted whether or not it is tied: sharing saves memory, not work. Embedding look-ups, norms,
    biases and activations are left out. Source: Kaplan et al. 2020, "Scaling Laws for Neural Language
    Models", section 2.1 and table 1 (there without the head).
    """
    block = sum(prod(shape) for shape in active_block_shapes(config).values() if len(shape) == 2)
    matmuls = 2 * (config.n_layers * block + config.vocab_size * config.emb_dim)
    attention = 4 * config.n_layers * config.context_length * config.emb_dim
    return Flops(matmuls + attention, matmuls)
