"""The shard of every parameter on each rank, where several processes share a model (tensor parallelism).

Attention is cut by whole heads, a feed-forward by its inner columns, embedding and head by tokens of the
vocabulary, a mixture by experts. A layer whose output axis is cut needs no communication; a layer that sums
over the cut axis needs an all-reduce: two in each block. Source: Shoeybi et al. 2019, "Megatron-LM",
section 3; experts: Lepikhin et al. 2020, "GShard", section 2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import Shape, block_shapes, outer_shapes
from gptcli.errors import UsageError, count

# The end of a parameter's name, the unit of its shards, and the axis that is cut. Every rank holds all other
# parameters whole: norms, positions, routers, and the biases that are added after an all-reduce.
SHARDING = (
    (r"att\.W_(query|key|value)\.(weight|bias)", "heads", 0),
    (r"att\.out_proj\.weight", "heads", 1),
    (r"ff\.(shared\.\d+\.)?(layers\.0|gate_proj|up_proj)\.(weight|bias)", "columns", 0),
    (r"ff\.(shared\.\d+\.)?(layers\.2|down_proj)\.weight", "columns", 1),
    (r"ff\.fc[123]\.(?P<expert>\d+)\.(weight|bias)", "experts", None),
    (r"(tok_emb|out_head)\.weight", "vocabulary", 0),
)


@dataclass(frozen=True)
class Rank:
    """A process among `world_size` processes, which are numbered from 0."""

    rank: int
    world_size: int

    def shard_range(self, n: int) -> range:
        """Return this rank's range of n things; lengths differ by one at most, and the last is longest."""
        return range(n * self.rank // self.world_size, n * (self.rank + 1) // self.world_size)


@dataclass(frozen=True)
class Shard:
    """A rank's part of a parameter: the positions `span` along `axis`; all of it if `axis` is None."""

    axis: int | None = None
    span: range = range(0)

    def shape(self, whole: Shape) -> Shape:
        """Return the shard's shape, given that of the whole parameter."""
        return tuple(len(self.span) if axis == self.axis else n for axis, n in enumerate(whole))


def shard_of(name: str, config: ModelConfig, rank: Rank) -> Shard | None:
    """Return a rank's shard of the parameter `name`; None for an expert that another rank holds."""
    for pattern, unit, axis in SHARDING:
        if (match := re.search(rf"(^|\.){pattern}$", name)) is None:
            continue
        match unit:
            case "heads":
                heads, D = rank.shard_range(config.n_heads), config.head_dim
                return Shard(axis, range(heads.start * D, heads.stop * D))
            case "columns":
                return Shard(axis, rank.shard_range(config.ffn_dim))
            case "vocabulary":
                return Shard(axis, rank.shard_range(config.vocab_size))
            case _:
                is_mine = int(match["expert"]) in rank.shard_range(config.n_experts)
                return Shard() if is_mine else None
    return Shard()


def elements_per_rank(shapes: Mapping[str, Shape], config: ModelConfig, rank: Rank) -> int:
    """Return how many elements of some parameters, given as name → whole shape, one rank holds."""
    shards = {name: shard_of(name, config, rank) for name in shapes}
    return sum(prod(shard.shape(shapes[name])) for name, shard in shards.items() if shard is not None)


def parameters_per_rank(config: ModelConfig, rank: Rank) -> int:
    """Return how many of the model's parameters one rank holds."""
    blocks = config.n_layers * elements_per_rank(block_shapes(config), config, rank)
    return elements_per_rank(outer_shapes(config), config, rank) + blocks


def max_world_size(config: ModelConfig) -> tuple[int, str]:
    """Return the most processes that can share a model, and what sets that limit."""
    limits = {
        count(config.n_heads, "head"): config.n_heads,
        f"{count(config.ffn_dim, 'column')} of the feed-forward": config.ffn_dim,
        # Greedy decoding asks each process for three of its logits.
        f"{count(config.vocab_size, 'token')}, three for each": max(1, config.vocab_size // 3),
    }
    reason = min(limits, key=lambda reason: limits[reason])
    return limits[reason], reason


def check_world_size(config: ModelConfig, world_size: int) -> None:
    """Raise `UsageError` for more processes than can share a model. Their shards may differ in size."""
    most, reason = max_world_size(config)
    if not 1 <= world_size <= most:
        choice = "take 1 process" if most == 1 else f"take 1 to {most}"
        raise UsageError(f"{world_size} processes cannot share {reason}: {choice}")
