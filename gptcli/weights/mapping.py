"""The numbers of a weights file where they lie, in a file that is still the one whose header was read."""

from __future__ import annotations

import mmap
import os
from typing import Any, BinaryIO

import numpy as np

from gptcli.config.dtypes import SAFETENSORS_DTYPES
from gptcli.errors import WeightsError
from gptcli.weights.header import TensorInfo, stamp_of

Array = np.ndarray[Any, np.dtype[Any]]


def open_file(tensor: TensorInfo) -> BinaryIO:
    """Open the file that holds a tensor; raise `WeightsError` if it is gone, or has changed meanwhile.

    Another program may have saved other weights between the header and this. Their numbers must not be taken
    for those that the header describes.
    """
    try:
        file = tensor.file.open("rb")
        if stamp_of(os.fstat(file.fileno())) != tensor.stamp:
            file.close()
            raise WeightsError(f"{tensor.file}: another program changed it while it was read; run again")
    except OSError as error:
        raise WeightsError(f"{tensor.file}: cannot be read: {error.strerror}") from None
    return file


def map_file(tensor: TensorInfo, access: int = mmap.ACCESS_READ) -> mmap.mmap:
    """Map the file that holds a tensor; the mapping lives as long as any view of it."""
    with open_file(tensor) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=access)
        except (OSError, ValueError) as error:
            raise WeightsError(f"{tensor.file}: cannot be mapped: {error}") from None


def view(tensor: TensorInfo, mapped: mmap.mmap) -> Array:
    """Return a tensor's numbers where they lie, at any address; bfloat16 as uint16."""
    dtype = _numpy_dtype(tensor)
    try:
        numbers = np.frombuffer(
            mapped, dtype, tensor.n_bytes // dtype.itemsize, tensor.data_start + tensor.begin
        )
    except ValueError:
        raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do") from None
    return numbers.reshape(tensor.shape)


def read(tensor: TensorInfo) -> Array:
    """Return a copy of a tensor's numbers; unlike a mapping it is safe from a file that is cut meanwhile."""
    dtype = _numpy_dtype(tensor)
    n_items = tensor.n_bytes // dtype.itemsize
    with open_file(tensor) as file:
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
