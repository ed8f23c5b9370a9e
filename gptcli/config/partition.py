"""Which part of every parameter each process holds, where a model is cut over several (tensor parallelism).

Attention is cut by whole heads, a feed-forward by its inner columns, embedding and head by tokens of the
vocabulary, a mixture by experts. What comes before a cut axis is computed apart, what sums over it is added
up: two sums over the processes a block. Source: Shoeybi et al. 2019, "Megatron-LM", section 3; experts:
Lepikhin et al. 2020, "GShard", section 2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import Shape, block_shapes, outer_shapes
from gptcli.errors import UsageError

# The end of a parameter's name, what it is cut by, and the axis that is cut. Whatever is not here every
# process holds whole: norms, positions, routers, and the biases that are added behind a sum.
CUTS = (
    (r"att\.W_(query|key|value)\.(weight|bias)", "heads", 0),
    (r"att\.out_proj\.weight", "heads", 1),
    (r"ff\.(shared\.\d+\.)?(layers\.0|gate_proj|up_proj)\.(weight|bias)", "columns", 0),
    (r"ff\.(shared\.\d+\.)?(layers\.2|down_proj)\.weight", "columns", 1),
    (r"ff\.fc[123]\.(?P<expert>\d+)\.(weight|bias)", "experts", None),
    (r"(tok_emb|out_head)\.weight", "vocabulary", 0),
)


@dataclass(frozen=True)
class Ranks:
    """A process by its number among so many."""

    rank: int
    size: int

    def share(self, n: int) -> range:
        """This process's part of n things: neighbours, equally long within one, none longer than the last."""
        return range(n * self.rank // self.size, n * (self.rank + 1) // self.size)


@dataclass(frozen=True)
class Part:
    """What of a parameter a process holds: of `axis` the positions `span`, or with no axis all of it."""

    axis: int | None = None
    span: range = range(0)

    def shape(self, whole: Shape) -> Shape:
        """The shape of the part."""
        return tuple(len(self.span) if axis == self.axis else n for axis, n in enumerate(whole))


def part_of(name: str, config: ModelConfig, ranks: Ranks) -> Part | None:
    """What of the parameter `name` a process holds; None for nothing, as of another's expert."""
    for pattern, by, axis in CUTS:
        if (match := re.search(rf"(^|\.){pattern}$", name)) is None:
            continue
        match by:
            case "heads":
                heads, D = ranks.share(config.n_heads), config.head_dim
                return Part(axis, range(heads.start * D, heads.stop * D))
            case "columns":
                return Part(axis, ranks.share(config.ffn_dim))
            case "vocabulary":
                return Part(axis, ranks.share(config.vocab_size))
            case _:
                return Part() if int(match["expert"]) in ranks.share(config.n_experts) else None
    return Part()


def held_of(shapes: Mapping[str, Shape], config: ModelConfig, ranks: Ranks) -> int:
    """How much of some parameters, by name → whole shape, one process holds."""
    parts = {name: part_of(name, config, ranks) for name in shapes}
    return sum(prod(part.shape(shapes[name])) for name, part in parts.items() if part is not None)


def held_parameters(config: ModelConfig, ranks: Ranks) -> int:
    """Parameters that one process holds."""
    blocks = config.n_layers * held_of(block_shapes(config), config, ranks)
    return held_of(outer_shapes(config), config, ranks) + blocks


def most_processes(config: ModelConfig) -> tuple[int, str]:
    """Over how many processes a model can be cut, and for want of what not over more."""
    limits = {
        f"{config.n_heads} heads": config.n_heads,
        f"{config.ffn_dim} columns of the feed-forward": config.ffn_dim,
        # Greedy decoding asks each process for three of its logits.
        f"{config.vocab_size} tokens, three for each": max(1, config.vocab_size // 3),
    }
    what = min(limits, key=lambda what: limits[what])
    return limits[what], what


def check_size(config: ModelConfig, size: int) -> None:
    """Raise `UsageError` for more processes than a model can be cut over. Parts may be uneven."""
    most, what = most_processes(config)
    if not 1 <= size <= most:
        raise UsageError(f"{size} processes cannot share {what}: take 1 to {most}")
