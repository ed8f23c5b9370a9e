"""One rank's shards of a checkpoint: nothing else of the file is read, and each shard is a copy."""

from collections.abc import Iterator

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gptcli.config.partition import Rank, Shard, shard_of
from gptcli.errors import WeightsError
from gptcli.weights.detect import TensorMatch
from gptcli.weights.plan import LoadPlan

Slice = tuple[slice, ...]


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
    path = match.tensor.file
    try:
        # The file is opened again for each tensor, and the shard is copied. A mapped page counts as memory of
        # this process as long as any view of the file exists, even if half of it is another rank's.
        with safe_open(path, framework="pt") as file:
            if shard.axis is None and match.rule.transform != "split":
                tensor: Tensor = file.get_tensor(match.name).clone()
            else:
                tensor = file.get_slice(match.name)[_slices(match, index, shard)].clone(
                    memory_format=torch.contiguous_format
                )
    except SafetensorError as error:
        raise WeightsError(f"{path}: corrupt or incomplete: {error}") from None
    return tensor.t() if match.rule.transform in ("transpose", "split") and tensor.ndim == 2 else tensor


def _slices(match: TensorMatch, index: int, shard: Shard) -> Slice:
    """Return the slices of the file's tensor that make the shard."""
    shape, transform = match.tensor.shape, match.rule.transform
    slices = [slice(0, n) for n in shape]
    axis = shard.axis
    if transform == "split":  # query, key and value are concatenated along the last axis
        third = shape[-1] // 3
        slices[-1] = slice(index * third, (index + 1) * third)
    if axis is not None:
        is_transposed = transform in ("transpose", "split") and len(shape) == 2
        axis = len(shape) - 1 - axis if is_transposed else axis
        start = slices[axis].start
        slices[axis] = slice(start + shard.span.start, start + shard.span.stop)
    return tuple(slices)
