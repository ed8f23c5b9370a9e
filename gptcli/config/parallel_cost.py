"""What a model costs each of N processes that share it, and on which GPUs it would run; from shapes alone."""

from bisect import bisect_left
from dataclasses import dataclass
from math import prod

from gptcli.config.cost import kv_bytes_per_token
from gptcli.config.model_config import ModelConfig
from gptcli.config.partition import Ranks, held_of, held_parameters, most_processes
from gptcli.config.shapes import block_shapes, outer_shapes

# Of a GPU's memory so much is for weights and cache; the rest for activations, CUDA itself, and fragments.
USABLE = 0.9


@dataclass(frozen=True)
class Gpu:
    """A GPU by its maker's data sheet: bytes of memory, and bytes a second that can be read from it."""

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


def largest_part(config: ModelConfig, size: int) -> int:
    """Parameters of the process that holds most of them: the last, whose every share is the longest."""
    return held_parameters(config, Ranks(size - 1, size))


def cache_bytes(config: ModelConfig, size: int, element_bytes: int) -> int:
    """Key/value cache of a token in the process with the most heads."""
    heads = -(-config.n_heads // size)
    return kv_bytes_per_token(config, element_bytes) * heads // config.n_heads


def sums_per_layer(config: ModelConfig) -> int:
    """How often the processes add up in one block: behind attention, feed-forward, and each shared expert."""
    return 2 + config.n_shared_experts


def sent_bytes_per_sum(config: ModelConfig, size: int, element_bytes: int) -> float:
    """Bytes that one process sends while a token's C numbers are added up: 2·(N - 1)/N of them.

    By a ring, which is the least that any order of sending needs: each number leaves for its sum once, and
    once as a sum. Source: Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms", theorem 1.
    """
    return 2 * (size - 1) / size * config.emb_dim * element_bytes


def sent_bytes_per_token(config: ModelConfig, size: int, element_bytes: int) -> float:
    """Bytes that one process sends for a decoded token: the sums of all blocks and that of the embedding,
    and for greedy decoding seven float64 of the head to each of the others.
    """
    sums = config.n_layers * sums_per_layer(config) + 1
    return sums * sent_bytes_per_sum(config, size, element_bytes) + 7 * 8 * (size - 1)


def read_parameters(config: ModelConfig, size: int) -> int:
    """Parameters that the busiest process reads for one token.

    All that it holds but embeddings, of which a token is one row, unless one is the head as well; of its
    experts those of the token, all in one process at the worst.
    """
    last = Ranks(size - 1, size)  # as in `largest_part`
    experts = min(config.n_experts_per_token, len(last.share(config.n_experts))) if config.is_moe else None
    block = block_shapes(config, experts)
    routed = sum(prod(shape) for name, shape in block.items() if ".fc" in name)
    dense = {name: shape for name, shape in block.items() if ".fc" not in name}
    looked_up = ("pos_emb.weight",) if config.tie_embeddings else ("pos_emb.weight", "tok_emb.weight")
    read = {name: shape for name, shape in outer_shapes(config).items() if name not in looked_up}
    return held_of(read, config, last) + config.n_layers * (held_of(dense, config, last) + routed)


def tokens_per_second(config: ModelConfig, size: int, gpu: Gpu, element_bytes: int = 2) -> float:
    """The most that memory allows for one text at full context: each step reads the weights and the cache.

    What is sent comes on top, so less is real. Source: Pope et al. 2022, "Efficiently Scaling Transformer
    Inference", section 2 (memory costs).
    """
    weights = read_parameters(config, size) * element_bytes
    cache = cache_bytes(config, size, element_bytes) * config.context_length
    return gpu.bytes_per_second / (weights + cache)


def fewest_gpus(config: ModelConfig, gpu: Gpu, element_bytes: int = 2) -> int | None:
    """The fewest of a GPU that hold the weights and the cache of one full context; None where none can."""

    def fits(size: int) -> bool:
        cache = cache_bytes(config, size, element_bytes) * config.context_length
        return largest_part(config, size) * element_bytes + cache <= USABLE * gpu.memory_bytes

    sizes = range(1, most_processes(config)[0] + 1)
    first = bisect_left(sizes, True, key=fits)  # what is held never grows with their number
    return sizes[first] if first < len(sizes) else None
