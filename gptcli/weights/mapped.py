"""Weights files mapped into memory: their tensors as arrays, and the pages given back after use."""

import mmap
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gptcli.config.dtypes import SAFETENSORS_DTYPES
from gptcli.errors import WeightsError
from gptcli.model.arrays import Array
from gptcli.weights.header import TensorInfo

# For one page that is read, Linux maps all cached ones of these bytes around it. Source: FAULT_AROUND_BYTES,
# the kernel's mm/memory.c.
MAPPED_AT_ONCE = 1 << 16


def map_file(path: Path) -> mmap.mmap:
    """Map a whole file, to be read."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from None


def mapped_tensor(tensor: TensorInfo, file: mmap.mmap) -> Array:
    """Return a tensor's numbers where they lie in the mapped file, which may be at any address."""
    numpy_name = SAFETENSORS_DTYPES[tensor.dtype].numpy
    assert numpy_name is not None  # `check_report` has seen to that
    dtype = np.dtype(numpy_name)
    try:
        numbers = np.frombuffer(
            file, dtype, tensor.n_bytes // dtype.itemsize, tensor.data_start + tensor.begin
        )
    except ValueError:
        raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do") from None
    return numbers.reshape(tensor.shape)


def release_pages(array: Array) -> None:
    """Take the pages behind a view of a mapped file out of this process's memory; others stay as they are.

    They are still the file's: whoever reads them again gets the same numbers.
    """
    file = _mapped_file(array)
    if file is None or not array.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    end = (
        first
        + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        + array.itemsize
    )
    first -= first % MAPPED_AT_ONCE
    end = min(end + -end % MAPPED_AT_ONCE, len(file))
    with suppress(OSError):  # locked pages stay in memory
        file.madvise(mmap.MADV_DONTNEED, first, end - first)


def _mapped_file(array: Array) -> mmap.mmap | None:
    """Return the mapped file that an array is a view of; None for other arrays."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None
