"""PyTorch's checkpoints, opened by `torch.load` with `weights_only`: their headers, without their numbers.

A checkpoint is a zip archive with a pickle of names and shapes; the numbers lie in it as they do in memory.
Files from before PyTorch 1.6 are read whole. Source: PyTorch's documentation, "Serialization semantics".
"""

import mmap
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptcli.config.dtypes import DTYPES, SAFETENSORS_DTYPES
from gptcli.convert.state_dict import find_config, find_state_dict
from gptcli.convert.tensors import Tensors, keep_last
from gptcli.errors import WeightsError
from gptcli.model.arrays import Array
from gptcli.weights.header import LFS_POINTER, Checkpoint, TensorInfo, lfs_message, stamp_of
from gptcli.weights.mapped import read

# What `weights_only` lets a pickle of a few bytes call, to fill any memory: bytearray(10**12).
ALLOCATION = b"\nbytearray\n"


@dataclass(frozen=True)
class Pickle:
    """One file: the tensors of its state dict by name, the others of its keys, and the config in it."""

    path: Path
    tensors: Mapping[str, Tensor]
    skipped: tuple[str, ...]
    config: Mapping[str, Any] | None
    has_offsets: bool


def read_pickle(path: Path, key: str | None) -> Pickle:
    """Read a checkpoint's names and shapes; `key` names the state dict among several.

    Raises `WeightsError` for a file that holds more than tensors and plain values, or that is no checkpoint.
    """
    is_archive = _check_archive(path)
    try:
        loaded = torch.load(path, map_location="meta" if is_archive else "cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # the parser's own, of many kinds
        raise WeightsError(_refusal(path, str(error))) from None
    state, where = find_state_dict(loaded, path, key)
    tensors = {name: value.detach() for name, value in state.items() if isinstance(value, Tensor)}
    skipped = [name for name in state if name not in tensors]
    if where:
        skipped += [str(name) for name in loaded if name != where]
    for name, tensor in tensors.items():
        _check_tensor(path, name, tensor)
    return Pickle(path, tensors, tuple(skipped), find_config(loaded, str(path)), is_archive)


def join_pickles(path: Path, pickles: list[Pickle]) -> Tensors:
    """Return the tensors of one checkpoint, whose shards these are; `path` is its file or folder."""
    infos: dict[str, TensorInfo] = {}
    sources: dict[str, tuple[Pickle, Tensor]] = {}
    for pickle in pickles:
        for name, info in _headers(pickle):
            if name in infos:
                raise WeightsError(f"{pickle.path}: tensor {name!r} is in {infos[name].file}, too")
            infos[name], sources[name] = info, (pickle, pickle.tensors[name])

    def read_one(name: str) -> Array:
        pickle, tensor = sources[name]
        if pickle.has_offsets:
            return _read_in_order(infos[name], tensor.stride())
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.uint16)
        numbers: Array = tensor.numpy()
        return numbers

    config = next((pickle.config for pickle in pickles if pickle.config), None)
    skipped = tuple(dict.fromkeys(key for pickle in pickles for key in pickle.skipped))
    return Tensors(Checkpoint(path, infos), keep_last(read_one), config, skipped)


def _read_in_order(info: TensorInfo, strides: tuple[int, ...]) -> Array:
    """Return a copy of a tensor's numbers, which may lie in the file in any order of its axes."""
    reach = 1 + sum((n - 1) * stride for n, stride in zip(info.shape, strides, strict=True))
    n_items = reach if 0 not in info.shape else 0
    item = SAFETENSORS_DTYPES[info.dtype].n_bytes
    flat = replace(info, shape=(n_items,), end=info.begin + n_items * item)
    numbers = read(flat)
    return np.lib.stride_tricks.as_strided(
        numbers, info.shape, [stride * item for stride in strides], writeable=False
    )


def _headers(pickle: Pickle) -> Iterator[tuple[str, TensorInfo]]:
    """Yield each tensor's name and where its numbers begin in the file; 0 for one that is in memory."""
    stamp = stamp_of(pickle.path.stat())
    for name, tensor in pickle.tensors.items():
        begin = 0
        if pickle.has_offsets:
            storage: Any = tensor.untyped_storage()
            begin = storage._checkpoint_offset + tensor.storage_offset() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")].safetensors
        end = begin + tensor.numel() * tensor.element_size()
        yield name, TensorInfo(pickle.path, dtype, tuple(tensor.shape), begin, end, 0, stamp)


def _check_archive(path: Path) -> bool:
    """Return whether the file is a zip archive; raise `WeightsError` for one that would unpack to more."""
    if not zipfile.is_zipfile(path):
        _check_stream(path)
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            is_stored = all(record.compress_type == zipfile.ZIP_STORED for record in records)
            pickles = [r.filename for r in records if is_stored and r.filename.endswith(".pkl")]
            allocates = any(ALLOCATION in archive.read(name) for name in pickles)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise WeightsError(f"{path}: corrupt or incomplete: {error}") from None
    unpacked, size = sum(record.file_size for record in records), path.stat().st_size
    if unpacked > size or not is_stored:
        raise WeightsError(
            f"{path}: an archive of {size:,} bytes that unpacks to {unpacked:,}; PyTorch does not compress"
        )
    if allocates:
        raise WeightsError(_refusal(path, "GLOBAL builtins.bytearray"))
    return True


def _check_stream(path: Path) -> None:
    """Raise `WeightsError` for a file that is no pickle, or one that would fill the memory."""
    with path.open("rb") as file:
        beginning = file.read(len(LFS_POINTER))
        if beginning == LFS_POINTER:
            raise WeightsError(lfs_message(path))
        if not beginning.startswith(b"\x80"):
            raise WeightsError(_refusal(path, "it is neither a zip archive nor a pickle"))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            if mapped.find(ALLOCATION) >= 0:
                raise WeightsError(_refusal(path, "GLOBAL builtins.bytearray"))


def _check_tensor(path: Path, name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided or str(tensor.dtype).removeprefix("torch.") not in DTYPES:
        kind = f"{tensor.layout}, {tensor.dtype}".replace("torch.", "")
        raise WeightsError(f"{path}: tensor {name!r} is {kind}, and only dense numbers are read")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise WeightsError(f"{path}: tensor {name!r} repeats its numbers: {list(tensor.shape)} of a few")


def _refusal(path: Path, error: str) -> str:
    """Return one line for what `torch.load` says in many."""
    if (found := re.search(r"(?:GLOBAL|class) ([\w.]+)", error)) is not None:
        return (
            f"{path}: holds an object of {found[1]}, and only tensors and plain values are read, since others"
            " can run code; save the state dict alone where it was made: torch.save(model.state_dict(), FILE)"
        )
    _, _, reason = error.rpartition("WeightsUnpickler error: ")
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "no reason given")
    return f"{path}: not a PyTorch checkpoint, or a corrupt one: {line[:200]}"
