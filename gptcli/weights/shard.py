"""One rank's shards of a checkpoint: nothing else of the file is read, and each shard is a copy."""

from collections.abc import Iterator

from torch import Tensor

from gptcli.config.partition import Rank, Shard, shard_of
from gptcli.weights.detect import TensorMatch
from gptcli.weights.load import to_torch
from gptcli.weights.mapped import map_file, mapped_tensor
from gptcli.weights.plan import LoadPlan


def read_shards(plan: LoadPlan, rank: Rank) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's shard of every parameter, by our name.

    The largest come first: while a tensor is copied, its pages of the file take memory too, and at the
    beginning there is the most left.
    """
    for match in sorted(plan.detected.matches, key=lambda match: -match.tensor.n_bytes):
        for index, target in enumerate(match.targets):
            shard = shard_of(target, plan.config, rank)
            if shard is not None:
                yield target, _read(match, index, shard)


def _read(match: TensorMatch, index: int, shard: Shard) -> Tensor:
    """Read the shard of target number `index` of a tensor, in our parameter's orientation."""
    # The file is mapped again for each tensor, and the shard is copied. A mapped page counts as memory of
    # this process as long as any view of the file exists, even if half of it is another rank's.
    part = match.rule.part(
        mapped_tensor(match.tensor, map_file(match.tensor.file, match.tensor.stamp)), index
    )
    if shard.axis is not None:
        part = part[(slice(None),) * shard.axis + (slice(shard.span.start, shard.span.stop),)]
    return to_torch(part.copy(order="K"), match.tensor.dtype)
