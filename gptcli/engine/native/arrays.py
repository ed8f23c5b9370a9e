"""NumPy arrays as the kernels take them: sizes, strides and dtypes are checked before C sees a pointer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gptcli.engine.native.library import DTYPES, Matrix, Norm
from gptcli.model.arrays import widen

ITEM_BYTES = (4, 2, 2, 1)  # by the numbers of DTYPES
Array = np.ndarray[Any, np.dtype[Any]]


def vector(array: Array, size: int, name: str) -> Array:
    """Return [size] numbers as aligned float32; a small copy, if they are not."""
    if array.shape != (size,) or array.dtype.name not in DTYPES or array.dtype == np.int8:
        raise ValueError(f"{name} has {array.dtype} {list(array.shape)}, expected floats [{size}]")
    return np.require(widen(array), np.float32, ("C", "A"))


def matrix(
    weight: Array, shape: tuple[int, int], name: str, bias: Array | None = None, scale: Array | None = None
) -> Matrix:
    """Describe a weight [O, I] where it lies, by rows or, as the transpose of [I, O], by columns.

    Bias [O] and scale [O] are what `vector` gives. The caller keeps all arrays alive.
    """
    size, strides = weight.itemsize, weight.strides
    if weight.shape != shape or weight.dtype.name not in DTYPES or not weight.dtype.isnative:
        raise ValueError(f"{name} has {weight.dtype} {list(weight.shape)}, expected numbers {list(shape)}")
    if (weight.dtype == np.int8) != (scale is not None):
        raise ValueError(f"{name} has {weight.dtype} and {'a' if scale is not None else 'no'} scale")
    by_rows = (strides[1] == size and strides[0] >= size * shape[1]) or shape[0] == 1 == shape[1]
    by_columns = not by_rows and strides[0] == size and strides[1] >= size * shape[0]
    stride = strides[1] if by_columns else strides[0]
    if not (by_rows or by_columns) or stride % size or (by_columns and scale is not None):
        raise ValueError(
            f"{name} lies neither by rows nor by columns: {list(shape)}, strides {list(strides)}"
        )
    return Matrix(
        weight.ctypes.data,
        pointer(scale),
        pointer(bias),
        shape[1],
        shape[0],
        stride // size,
        DTYPES[weight.dtype.name],
        by_columns,
    )


def are_neighbors(matrices: Sequence[Matrix]) -> bool:
    """Return whether matrices by columns are slices of one, next to each other."""
    first, item = matrices[0], ITEM_BYTES[matrices[0].dtype]
    return all(
        each.by_columns
        and (each.dtype, each.stride) == (first.dtype, first.stride)
        and each.data == first.data + i * first.n_outputs * item
        for i, each in enumerate(matrices)
    )


def norm(scale: Array, shift: Array | None) -> Norm:
    """Describe a LayerNorm with scale [C] and, if it has one, shift [C] from `vector`."""
    return Norm(pointer(scale), pointer(shift))


def pointer(array: Array | None) -> int | None:
    """Return the address of an array's first number, or None."""
    return None if array is None else array.ctypes.data
