"""The differences between two weights files of any layouts, tensor by tensor."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from gptcli.errors import WeightsError
from gptcli.model.arrays import Array
from gptcli.weights.detect import TensorMatch, detect_layout
from gptcli.weights.header import Checkpoint
from gptcli.weights.layouts import is_int8_scale, scaled_weight
from gptcli.weights.tensor_data import read_parameters, read_tensor

Reader = Callable[[], Array]
Verdict = Literal["equal", "differs", "other shape", "only in the first", "only in the second"]


@dataclass(frozen=True)
class DifferenceRow:
    """One parameter of both files; its largest differences, absolute and relative to the greater number."""

    name: str
    verdict: Verdict
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    detail: str = ""


def differences(first: Checkpoint, second: Checkpoint) -> Iterator[DifferenceRow]:
    """Yield a row for every parameter of either file, by our names; by theirs if a layout is unknown."""
    try:
        ours, theirs = _by_parameter(first), _by_parameter(second)
    except WeightsError:
        ours, theirs = _by_name(first), _by_name(second)
    for name in dict.fromkeys((*ours, *theirs)):
        if name not in theirs:
            yield DifferenceRow(name, "only in the first")
        elif name not in ours:
            yield DifferenceRow(name, "only in the second")
        else:
            yield _compare(name, ours[name](), theirs[name]())


def _by_parameter(checkpoint: Checkpoint) -> dict[str, Reader]:
    """Return a reader for every parameter; int8 weights are read as the floats that they stand for."""
    matches = detect_layout(checkpoint).by_target
    readers: dict[str, Reader] = {
        name: partial(_read_parameter, match, name) for name, match in matches.items()
    }
    for name in [name for name in readers if is_int8_scale(name)]:
        scale, weight = readers.pop(name), scaled_weight(name)
        if weight in readers:
            readers[weight] = partial(_dequantize, readers[weight], scale)
    return readers


def _read_parameter(match: TensorMatch, name: str) -> Array:
    return read_parameters(match)[name]


def _dequantize(rows: Reader, scale: Reader) -> Array:
    return rows() * scale()[:, None]


def _by_name(checkpoint: Checkpoint) -> dict[str, Reader]:
    return {name: partial(read_tensor, tensor) for name, tensor in checkpoint.tensors.items()}


def _compare(name: str, a: Array, b: Array) -> DifferenceRow:
    if a.shape != b.shape:
        return DifferenceRow(name, "other shape", detail=f"{list(a.shape)} and {list(b.shape)}")
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return DifferenceRow(name, "equal")
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
        size = np.maximum(np.abs(a), np.abs(b))
        relative = np.where(same, 0.0, gap / size)
    return DifferenceRow(name, "differs", float(gap.max()), float(relative.max()))
