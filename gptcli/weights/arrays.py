"""A checkpoint's parameters as NumPy arrays: views of the mapped file wherever layout and dtype allow."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from gptcli.config.dtypes import DTYPES, SAFETENSORS_DTYPES
from gptcli.config.model_config import ModelConfig
from gptcli.errors import WeightsError
from gptcli.weights.detect import TensorMatch
from gptcli.weights.head import EMBEDDING, HEAD, resolve_head
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = 256  # converted at once


def read_arrays(plan: LoadPlan, dtype: str) -> tuple[ModelConfig, dict[str, Array], tuple[str, ...]]:
    """Return the final config, every parameter by our name, and notes on the head.

    bfloat16 numbers are uint16 here. In the file's own dtype nothing is copied: a parameter is a view of the
    mapped file, a Conv1D matrix as its transpose. A tied head is left out. Raises `WeightsError` for tensors
    that are missing, unexpected or misshapen.
    """
    check_report(plan, load_report(plan))
    maps = {path: _map(path) for path in plan.checkpoint.files}
    parameters: dict[str, Array] = {}
    stored: dict[str, str] = {}
    for match in plan.detected.matches:
        whole = _view(match, maps)
        for target, part in zip(match.targets, _split(match, whole), strict=True):
            parameters[target], stored[target] = part, SAFETENSORS_DTYPES[match.tensor.dtype].name
    config, notes = resolve_head(plan, parameters, equal=np.array_equal)
    if plan.head_is_embedding:
        stored[EMBEDDING] = stored[HEAD]
    return config, {name: convert(array, stored[name], dtype) for name, array in parameters.items()}, notes


def convert(array: Array, stored: str, dtype: str) -> Array:
    """Return the numbers in another dtype, rounded to nearest, ties to even; themselves if it is theirs.

    Rows are converted a few at a time, because what lies between is larger than both.
    """
    if stored == dtype:
        return array
    converted = np.empty_like(array, np.uint16 if dtype == "bfloat16" else np.dtype(DTYPES[dtype].numpy))
    rows, results = np.atleast_1d(array), np.atleast_1d(converted)  # views
    for first in range(0, len(rows), ROWS):
        results[first : first + ROWS] = _convert(rows[first : first + ROWS], stored, dtype)
    return converted


def _convert(array: Array, stored: str, dtype: str) -> Array:
    numbers = (array.astype(np.uint32) << 16).view(np.float32) if stored == "bfloat16" else array
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # what is too large is infinite
            return numbers.astype(np.dtype(DTYPES[dtype].numpy))
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), rounded.astype(np.uint16))


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from None


def _view(match: TensorMatch, maps: dict[Path, mmap.mmap]) -> Array:
    """Return a tensor's numbers where they lie in the file, which may be at any address."""
    tensor = match.tensor
    numpy_name = SAFETENSORS_DTYPES[tensor.dtype].numpy
    assert numpy_name is not None  # `check_report` has seen to that
    dtype = np.dtype(numpy_name)
    try:
        numbers = np.frombuffer(
            maps[tensor.file], dtype, tensor.n_bytes // dtype.itemsize, tensor.data_start + tensor.begin
        )
    except ValueError:
        raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do") from None
    return numbers.reshape(tensor.shape)


def _split(match: TensorMatch, whole: Array) -> list[Array]:
    """Return the tensor as our parameters want it: views, no copies."""
    match match.rule.transform:
        case "ignore":
            return []
        case "transpose":
            return [whole.T]
        case "split":
            return [part.T if part.ndim == 2 else part for part in np.split(whole, 3, axis=-1)]
        case _:
            return [whole]
