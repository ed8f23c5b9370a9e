"""One process's parts of a checkpoint: no more is read of the file, and the parts are copies of their own."""

from collections.abc import Iterator

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gptcli.config.partition import Part, Ranks, part_of
from gptcli.errors import WeightsError
from gptcli.weights.detect import Match
from gptcli.weights.plan import LoadPlan

Slice = tuple[slice, ...]


def read_parts(plan: LoadPlan, ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """What this process holds of every parameter, by our name.

    The largest come first: the file's pages of a tensor are there beside its copy, and then little else is.
    """
    for match in sorted(plan.recognised.matches, key=lambda match: -match.tensor.n_bytes):
        for index, target in enumerate(match.targets):
            part = part_of(target, plan.config, ranks)
            if part is not None:
                yield target, _read(match, index, part)


def _read(match: Match, index: int, part: Part) -> Tensor:
    """The part of the target `index` of a tensor, as our parameter wants it."""
    path = match.tensor.file
    try:
        # Opened anew for each tensor, and its part copied: the pages of a mapped file are whole, also where
        # half of each is another's, and count as ours as long as something of the file is in use.
        with safe_open(path, framework="pt") as file:
            if part.axis is None and match.rule.how != "split":
                tensor: Tensor = file.get_tensor(match.name).clone()
            else:
                tensor = file.get_slice(match.name)[_slices(match, index, part)].clone(
                    memory_format=torch.contiguous_format
                )
    except SafetensorError as error:
        raise WeightsError(f"{path}: corrupt or incomplete: {error}") from None
    return tensor.t() if match.rule.how in ("transpose", "split") and tensor.ndim == 2 else tensor


def _slices(match: Match, index: int, part: Part) -> Slice:
    """Where in the file's tensor the part lies."""
    shape, how = match.tensor.shape, match.rule.how
    slices = [slice(0, n) for n in shape]
    axis = part.axis
    if how == "split":  # query, key and value side by side along the last axis
        third = shape[-1] // 3
        slices[-1] = slice(index * third, (index + 1) * third)
    if axis is not None:
        is_turned = how in ("transpose", "split") and len(shape) == 2
        axis = len(shape) - 1 - axis if is_turned else axis
        start = slices[axis].start
        slices[axis] = slice(start + part.span.start, start + part.span.stop)
    return tuple(slices)
