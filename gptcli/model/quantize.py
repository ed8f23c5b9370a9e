"""int8 rows with a scale each: the one quantizer, for the native kernels and for PyTorch's int8 linears."""

from collections.abc import Mapping, Sequence

import numpy as np

from gptcli.config.shapes import is_quantized
from gptcli.model.arrays import (
    SERIAL,
    Array,
    PieceRunner,
    convert,
    is_by_columns,
    widen,
)

Names = tuple[str, ...]


def convert_parameters(
    tensors: Mapping[Names, Array], dtype: str | None, each: PieceRunner, *, quantize: bool
) -> dict[str, Array]:
    """Return parameters by name in `dtype` (None: their own), or with every linear in int8 with scales.

    A tensor has the names of the parameters that it holds, one after another along its first axis. What
    becomes int8 is rounded to `dtype` first. A tied head becomes a parameter then: the embedding stays. What
    is int8 already stays as it is.
    """
    head, embedding = ("out_head.weight",), ("tok_emb.weight",)
    parameters: dict[str, Array] = {}
    if quantize and head not in tensors:
        tensors = {**tensors, head: tensors[embedding]}
    for names, tensor in tensors.items():
        if tensor.dtype == np.int8:
            parameters |= _split(names, tensor)
        elif _is_scale(names, tensors):
            parameters |= _split(names, convert(tensor, "float32"))
        elif quantize and is_quantized(names[0]):
            rows, scale = to_int8(tensor, dtype, each)
            parameters |= _split(names, rows)
            parameters |= _split([name.removesuffix("weight") + "scale" for name in names], scale)
        else:
            parameters |= _split(names, tensor if dtype is None else convert(tensor, dtype, each))
    return parameters


def _is_scale(names: Names, tensors: Mapping[Names, Array]) -> bool:
    weight = tensors.get((names[0].removesuffix("scale") + "weight",))
    return names[0].endswith(".scale") and weight is not None and weight.dtype == np.int8


def _split(names: Sequence[str], tensor: Array) -> dict[str, Array]:
    parts = [tensor] if len(names) == 1 else np.split(tensor, len(names))
    return dict(zip(names, parts, strict=True))


def to_int8(weight: Array, dtype: str | None = None, each: PieceRunner = SERIAL) -> tuple[Array, Array]:
    """Return the nearest int8 to rows [O, I], and each row's scale [O]: its largest magnitude over 127.

    Weights are rounded to `dtype` first, if one is given; bfloat16 is uint16. They are read in the order of
    the memory, and no copy of them is made but of a piece at a time.
    Source: Dettmers et al. 2022, "LLM.int8()", section 2.1 (absmax, row by row).
    """
    rows, scale = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    stored = weight.T if is_by_columns(weight) else weight

    def floats(piece: slice) -> Array:
        return widen(stored[piece] if dtype is None else convert(stored[piece], dtype))

    if stored is weight:

        def quantize(piece: slice) -> None:
            rows[piece], scale[piece] = quantize_rows(floats(piece))

        each(stored, quantize)
        return rows, scale

    # Only when all of a matrix by columns has been read is the largest magnitude of a row known.
    maxima = list[Array]()
    each(stored, lambda piece: maxima.append(np.abs(floats(piece)).max(axis=0)), is_last=False)
    scale[:] = _scale(np.max(maxima, axis=0))

    def round_columns(piece: slice) -> None:
        rows.T[piece] = _nearest(floats(piece), scale)

    each(stored, round_columns)
    return rows, scale


def quantize_rows(rows: Array) -> tuple[Array, Array]:
    """Return `to_int8` of a few float32 rows [n, I]."""
    scale = _scale(np.abs(rows).max(axis=1))
    return _nearest(rows, scale[:, None]), scale


def _scale(largest: Array) -> Array:
    scale: Array = np.maximum(largest, np.finfo(np.float32).tiny) / np.float32(127)
    return scale


def _nearest(numbers: Array, scale: Array) -> Array:
    with np.errstate(invalid="ignore"):  # NaN has no int8
        steps = numbers / scale
        return np.rint(steps, out=steps).astype(np.int8)
