"""The numbers of weights files: mapped where they lie, or read, from the file whose header was read."""

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gptcli.config.dtypes import SAFETENSORS_DTYPES
from gptcli.errors import WeightsError
from gptcli.model.arrays import Array
from gptcli.weights.detect import TensorMatch
from gptcli.weights.header import Stamp, TensorInfo, stamp_of

# For one page that is read, Linux maps all cached ones of these bytes around it. Source: FAULT_AROUND_BYTES,
# the kernel's mm/memory.c.
MAPPED_AT_ONCE = 1 << 16


def open_file(path: Path, stamp: Stamp | None = None) -> BinaryIO:
    """Open a file of weights; raise `WeightsError` if it is gone, or is not the one with this stamp.

    Another program may have saved other weights between the header and this. Their numbers must not be taken
    for those that the header describes.
    """
    try:
        file = path.open("rb")
        if stamp is not None and stamp_of(os.fstat(file.fileno())) != stamp:
            file.close()
            raise WeightsError(f"{path}: another program changed it while it was read; run again")
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    return file


def map_file(path: Path, stamp: Stamp | None = None, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """Map a whole file, to be read; the mapping lives as long as any view of it."""
    with open_file(path, stamp) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=access)
        except (OSError, ValueError) as error:
            raise WeightsError(f"{path}: cannot be mapped: {error}") from None


def map_files(matches: Iterable[TensorMatch], access: int = mmap.ACCESS_READ) -> dict[Path, mmap.mmap]:
    """Map the files that hold these tensors."""
    stamps = {match.tensor.file: match.tensor.stamp for match in matches}
    return {path: map_file(path, stamp, access) for path, stamp in stamps.items()}


def mapped_tensor(tensor: TensorInfo, file: mmap.mmap) -> Array:
    """Return a tensor's numbers where they lie in the mapped file, at any address; bfloat16 as uint16."""
    dtype = _numpy_dtype(tensor)
    try:
        numbers = np.frombuffer(
            file, dtype, tensor.n_bytes // dtype.itemsize, tensor.data_start + tensor.begin
        )
    except ValueError:
        raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do") from None
    return numbers.reshape(tensor.shape)


def read(tensor: TensorInfo) -> Array:
    """Return a copy of a tensor's numbers; unlike a mapping it is safe from a file that is cut meanwhile."""
    dtype = _numpy_dtype(tensor)
    n_items = tensor.n_bytes // dtype.itemsize
    with open_file(tensor.file, tensor.stamp) as file:
        file.seek(tensor.data_start + tensor.begin)
        numbers = np.fromfile(file, dtype, n_items)
    if numbers.size < n_items:
        raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do")
    return numbers.reshape(tensor.shape)


def _numpy_dtype(tensor: TensorInfo) -> np.dtype[Any]:
    name = SAFETENSORS_DTYPES[tensor.dtype].numpy
    if name is None:
        raise WeightsError(f"{tensor.file}: dtype {tensor.dtype} cannot be read number by number")
    return np.dtype(name)


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
