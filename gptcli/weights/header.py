"""The header of safetensors files: names, dtypes, shapes and offsets of all tensors, without their data.

Format: 8 bytes, little-endian length N; N bytes of JSON, name → {dtype, shape, data_offsets}; then the data.
Source: the safetensors README, section "Format".
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from gptcli.config.dtypes import SAFETENSORS_DTYPES
from gptcli.config.files import LFS_POINTER as LFS_POINTER
from gptcli.config.files import parse_int, unique_keys
from gptcli.config.shapes import Shape
from gptcli.errors import WeightsError

# The format allows 100 MB, but 10⁵ tensors need only about 10. A greater length is a corrupt one.
MAX_HEADER_BYTES = 16 * 1024 * 1024

MAX_DIMENSIONS = 64  # PyTorch's limit, too
MAX_NAME_LENGTH = 1000

Stamp = tuple[int, ...]  # what changes when a file is replaced or written


@dataclass(frozen=True)
class TensorInfo:
    """One tensor in a file; `dtype` is the format's name, such as F32.

    `begin` and `end` are bytes from the start of the data, which is `data_start` bytes into the file. `stamp`
    is that of the file when its header was read.
    """

    file: Path
    dtype: str
    shape: Shape
    begin: int
    end: int
    data_start: int
    stamp: Stamp

    @property
    def n_bytes(self) -> int:
        """Bytes of its data."""
        return self.end - self.begin


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a weights file or folder, by name, with the metadata of its files."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors, each once."""
        return tuple(dict.fromkeys(tensor.file for tensor in self.tensors.values()))

    @property
    def folder(self) -> Path:
        """The folder of the weights."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def config_path(self) -> Path | None:
        """The `config.json` in the folder of the weights, or None."""
        path = self.folder / "config.json"
        return path if path.is_file() else None


def lfs_message(path: Path) -> str:
    """Return the message for a Git LFS pointer, with the command that fetches the weights."""
    return f"{path}: a Git LFS pointer, not the weights; run git lfs pull in its repository to fetch them"


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what tells this file from another of the same name, and from itself after a change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def require_regular(path: Path) -> None:
    """Raise `WeightsError` for a pipe, which would have to be waited for, and for a device."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise WeightsError(f"{path}: not a regular file; weights are read from a file on disk")


def read_file_header(path: Path) -> Checkpoint:
    """Read the header of one `.safetensors` file; raise `WeightsError` unless header and size fit exactly."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if LFS_POINTER.startswith(prefix) and prefix + file.read(len(LFS_POINTER) - 8) == LFS_POINTER:
                raise WeightsError(lfs_message(path))
            if len(prefix) < 8 or length > size - 8:
                raise _corrupt(path, f"the header alone needs {8 + length:,} bytes, the file has {size:,}")
            if length > MAX_HEADER_BYTES:
                raise _corrupt(path, f"a header of {length:,} bytes, where {MAX_HEADER_BYTES:,} is the most")
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        header = json.loads(text.decode("utf-8"), parse_int=parse_int, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is not the JSON of a safetensors file ({error})") from None
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _corrupt(path, "its __metadata__ is not a mapping of text to text")
    if (longest := max(map(len, header), default=0)) > MAX_NAME_LENGTH:
        raise _corrupt(path, f"the name of a tensor has {longest:,} characters")
    stamp = stamp_of(status)
    tensors = {name: _tensor(path, name, entry, 8 + length, stamp) for name, entry in header.items()}
    _check_offsets(path, tensors, size - 8 - length)
    return Checkpoint(path, tensors, metadata)


def _tensor(path: Path, name: str, entry: Any, data_start: int, stamp: Stamp) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers_are_sizes = len(shape) <= MAX_DIMENSIONS and all(
            type(n) is int and 0 <= n < 2**63 for n in (*shape, begin, end)
        )
    except (TypeError, KeyError, ValueError):
        numbers_are_sizes = False
    if not numbers_are_sizes or not isinstance(dtype, str):
        raise _corrupt(path, f"the entry of tensor {name!r} is not dtype, shape and data_offsets")
    if dtype not in SAFETENSORS_DTYPES:
        raise WeightsError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    expected = (prod(shape) * SAFETENSORS_DTYPES[dtype].bits + 7) // 8
    if end - begin != expected:
        raise _corrupt(
            path,
            f"tensor {name!r} {dtype} {shape} needs {expected:,} bytes, its offsets give {end - begin:,}",
        )
    return TensorInfo(path, dtype, tuple(shape), begin, end, data_start, stamp)


def _check_offsets(path: Path, tensors: Mapping[str, TensorInfo], data_bytes: int) -> None:
    """Raise `WeightsError` unless the tensors fill the data exactly: no gap, no overlap, no rest."""
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != at:
            raise _corrupt(path, f"tensor {name!r} begins at byte {tensor.begin:,}, where {at:,} is expected")
        at = tensor.end
    if at != data_bytes:
        raise _corrupt(path, f"its tensors need {at:,} bytes of data, the file has {data_bytes:,}")


def _corrupt(path: Path, detail: str) -> WeightsError:
    return WeightsError(f"{path}: corrupt or incomplete: {detail}")
