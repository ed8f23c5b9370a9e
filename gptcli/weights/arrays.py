"""A checkpoint's parameters as NumPy arrays: views of the mapped file wherever layout and dtype allow."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gptcli.config.dtypes import DTYPES, SAFETENSORS_DTYPES
from gptcli.config.model_config import ModelConfig
from gptcli.weights.detect import TensorMatch
from gptcli.weights.head import EMBEDDING, HEAD, resolve_head
from gptcli.weights.layouts import is_int8_scale
from gptcli.weights.mapping import Array, map_file, view
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report

ROWS = 256  # converted at once


def read_arrays(plan: LoadPlan, dtype: str) -> tuple[ModelConfig, dict[str, Array], tuple[str, ...]]:
    """Return the final config, every parameter by our name, and notes on the head.

    bfloat16 numbers are uint16 here. In the file's own dtype nothing is copied: a parameter is a view of the
    mapped file, a Conv1D matrix as its transpose. Weights in int8 stay so. A tied head is left out.
    Raises `WeightsError` for tensors that are missing, unexpected or misshapen.
    """
    check_report(plan, load_report(plan))
    parameters: dict[str, Array] = {}
    stored: dict[str, str] = {}
    for match, whole in map_matches(plan):
        for target, part in match.parameters(whole):
            parameters[target], stored[target] = part, SAFETENSORS_DTYPES[match.tensor.dtype].name
    config, notes = resolve_head(plan, parameters, equal=np.array_equal)
    if plan.head_is_embedding:
        stored[EMBEDDING] = stored[HEAD]
    for name, array in parameters.items():
        if stored[name] != "int8":
            parameters[name] = convert(array, stored[name], "float32" if is_int8_scale(name) else dtype)
    return config, parameters, notes


def map_matches(plan: LoadPlan, access: int = mmap.ACCESS_READ) -> Iterator[tuple[TensorMatch, Array]]:
    """Yield every tensor that fills a parameter, with its numbers where they lie in its mapped file."""
    maps: dict[Path, mmap.mmap] = {}
    for match in plan.detected.matches:
        if match.targets:
            path = match.tensor.file
            if path not in maps:
                maps[path] = map_file(match.tensor, access)
            yield match, view(match.tensor, maps[path])


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
