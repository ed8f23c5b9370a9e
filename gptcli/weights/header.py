"""The header of safetensors files: names, types, shapes and places of all tensors, without their data.

Format: 8 bytes, little-endian length N; N bytes of JSON, name → {dtype, shape, data_offsets}; then the data.
Source: the safetensors README, section "Format".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from gptcli.config.shapes import Shape
from gptcli.errors import WeightsError

# The format allows 100 MB; a header of 10⁵ tensors needs about 10. Beyond this the length itself is corrupt.
MAX_HEADER_BYTES = 16 * 1024 * 1024

DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor in a file: `dtype` by the format's name, `begin` and `end` from the start of the data.

    The data start `data_start` bytes into the file.
    """

    file: Path
    dtype: str
    shape: Shape
    begin: int
    end: int
    data_start: int

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a weights file or folder, by name, with the metadata of the first file."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(tensor.file for tensor in self.tensors.values()))

    @property
    def config_path(self) -> Path | None:
        """The `config.json` beside the weights, where there is one."""
        folder = self.path if self.path.is_dir() else self.path.parent
        path = folder / "config.json"
        return path if path.is_file() else None


def read_file_header(path: Path) -> Checkpoint:
    """The tensors of one `.safetensors` file; raises `WeightsError` unless header and size agree entirely."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise _corrupt(path, f"the header alone needs {8 + length:,} bytes, the file has {size:,}")
            if length > MAX_HEADER_BYTES:
                raise _corrupt(path, f"a header of {length:,} bytes, where {MAX_HEADER_BYTES:,} is the most")
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"its header is not the JSON of a safetensors file ({error})") from None
    if not isinstance(header, dict):
        raise _corrupt(path, "its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _corrupt(path, "its __metadata__ is not a mapping of text to text")
    tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    _check_places(path, tensors, size - 8 - length)
    return Checkpoint(path, tensors, metadata)


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers_are_sizes = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        numbers_are_sizes = False
    if not numbers_are_sizes or not isinstance(dtype, str):
        raise _corrupt(path, f"the entry of tensor {name!r} is not dtype, shape and data_offsets")
    if dtype not in DTYPE_BITS:
        raise WeightsError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    expected = (prod(shape) * DTYPE_BITS[dtype] + 7) // 8
    if end - begin != expected:
        raise _corrupt(
            path,
            f"tensor {name!r} {dtype} {shape} needs {expected:,} bytes, its offsets give {end - begin:,}",
        )
    return TensorInfo(path, dtype, tuple(shape), begin, end, data_start)


def _check_places(path: Path, tensors: Mapping[str, TensorInfo], data_bytes: int) -> None:
    """The tensors must fill the data exactly: no gap, no overlap, nothing behind the end."""
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != at:
            raise _corrupt(path, f"tensor {name!r} begins at byte {tensor.begin:,}, where {at:,} is expected")
        at = tensor.end
    if at != data_bytes:
        raise _corrupt(path, f"its tensors need {at:,} bytes of data, the file has {data_bytes:,}")


def _corrupt(path: Path, detail: str) -> WeightsError:
    return WeightsError(f"{path}: corrupt or incomplete: {detail}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a name stands there twice")
    return keys
