"""The costs of a model that several ranks share, and the GPUs that it needs; from shapes alone."""

from bisect import bisect_left
from dataclasses import dataclass
from math import prod

from gptcli.config.cost import kv_bytes_per_token
from gptcli.config.model_config import ModelConfig
from gptcli.config.partition import Rank, elements_per_rank, max_world_size, parameters_per_rank
from gptcli.config.shapes import block_shapes, outer_shapes

# The fraction of a GPU's memory for weights and cache; activations, CUDA and fragmentation take the rest.
USABLE_MEMORY = 0.9


@dataclass(frozen=True)
class Gpu:
    """A GPU by its maker's data sheet: bytes of memory, and the bytes a second that it reads from there."""

    name: str
    memory_bytes: float
    bytes_per_second: float


# NVIDIA's data sheets of each product (SXM where there are several).
GPUS = (
    Gpu("RTX 4090 24 GB", 24e9, 1.008e12),
    Gpu("L40S 48 GB", 48e9, 0.864e12),
    Gpu("A100 80 GB", 80e9, 2.039e12),
    Gpu("H100 80 GB", 80e9, 3.35e12),
    Gpu("H200 141 GB", 141e9, 4.8e12),
    Gpu("B200 180 GB", 180e9, 8.0e12),
)


def max_parameters_per_rank(config: ModelConfig, world_size: int) -> int:
    """Return the parameters of the last rank, which holds the most."""
    return parameters_per_rank(config, Rank(world_size - 1, world_size))


def kv_bytes_per_token_per_rank(config: ModelConfig, world_size: int, element_bytes: int) -> int:
    """Return the bytes of the key/value cache for one token, on the rank with the most heads."""
    heads = -(-config.n_heads // world_size)
    return kv_bytes_per_token(config, element_bytes) * heads // config.n_heads


def all_reduces_per_layer(config: ModelConfig) -> int:
    """Return the all-reduces of one block: after attention, after the feed-forward and each shared expert."""
    return 2 + config.n_shared_experts


def sent_bytes_per_all_reduce(config: ModelConfig, world_size: int, element_bytes: int) -> float:
    """Return the bytes that one rank sends in the all-reduce of a token's C numbers: 2·(N - 1)/N of theirs.

    A ring needs this much, and no algorithm needs less: every number is sent once to be summed, and once as
    part of the result. Source: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms", theorem 1.
    """
    return 2 * (world_size - 1) / world_size * config.emb_dim * element_bytes


def sent_bytes_per_token(config: ModelConfig, world_size: int, element_bytes: int) -> float:
    """Return the bytes that one rank sends for a decoded token.

    These are the all-reduces of all blocks and of the embedding, and for greedy decoding seven float64 of the
    head to every other rank.
    """
    n_all_reduces = config.n_layers * all_reduces_per_layer(config) + 1
    sent_to_others = 7 * 8 * (world_size - 1)
    return n_all_reduces * sent_bytes_per_all_reduce(config, world_size, element_bytes) + sent_to_others


def parameters_read_per_token(config: ModelConfig, world_size: int) -> int:
    """Return how many parameters the busiest rank reads for one token.

    A token reads one row of an embedding, which is not counted; a tied embedding is, as the head. Of the
    experts it reads those chosen for the token, in the worst case all on one rank.
    """
    last = Rank(world_size - 1, world_size)  # as in `max_parameters_per_rank`
    experts = (
        min(config.n_experts_per_token, len(last.shard_range(config.n_experts))) if config.is_moe else None
    )
    block = block_shapes(config, experts)
    routed = sum(prod(shape) for name, shape in block.items() if ".fc" in name)
    dense = {name: shape for name, shape in block.items() if ".fc" not in name}
    looked_up = ("pos_emb.weight",) if config.tie_embeddings else ("pos_emb.weight", "tok_emb.weight")
    read = {name: shape for name, shape in outer_shapes(config).items() if name not in looked_up}
    return elements_per_rank(read, config, last) + config.n_layers * (
        elements_per_rank(dense, config, last) + routed
    )


def tokens_per_second(config: ModelConfig, world_size: int, gpu: Gpu, element_bytes: int = 2) -> float:
    """Return an upper limit of tokens/s for one text at full context: each step reads weights and cache.

    Communication comes on top, so the real speed is lower. Source: Pope et al. 2022, "Efficiently Scaling
    Transformer Inference", section 2 (memory costs).
    """
    weights = parameters_read_per_token(config, world_size) * element_bytes
    cache = kv_bytes_per_token_per_rank(config, world_size, element_bytes) * config.context_length
    return gpu.bytes_per_second / (weights + cache)


def fewest_gpus(config: ModelConfig, gpu: Gpu, element_bytes: int = 2) -> int | None:
    """Return how many GPUs hold the weights and the cache of one full context; None if no number does."""

    def fits(world_size: int) -> bool:
        cache = kv_bytes_per_token_per_rank(config, world_size, element_bytes) * config.context_length
        return (
            max_parameters_per_rank(config, world_size) * element_bytes + cache
            <= USABLE_MEMORY * gpu.memory_bytes
        )

    sizes = range(1, max_world_size(config)[0] + 1)
    first = bisect_left(sizes, True, key=fits)  # a rank never holds more when there are more of them
    return sizes[first] if first < len(sizes) else None
