"""The forms of weights on disk: one safetensors file, or a folder with one or with an index of shards."""

import json
from dataclasses import replace
from pathlib import Path

from gptcli.config.files import parse_int
from gptcli.errors import WeightsError, count
from gptcli.weights.folders import INDEX, PICKLES, SINGLE, find_weights, pickle_message, shard_message
from gptcli.weights.header import (
    LFS_POINTER,
    MAX_HEADER_BYTES,
    Checkpoint,
    TensorInfo,
    lfs_message,
    read_file_header,
    require_regular,
)
from gptcli.weights.hub_names import hint_for


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of the weights at `path`; raise `WeightsError` for anything but safetensors."""
    if not path.exists():
        raise WeightsError(f"{path}: no such weights file or folder{hint_for(path)}")
    if path.is_dir():
        found = find_weights(path)
        checkpoint = _open_shards(found) if found.name == INDEX else read_file_header(found)
        return replace(checkpoint, path=found.parent) if found.name in (SINGLE, INDEX) else checkpoint
    if path.name.endswith(".index.json"):
        return _open_shards(path)
    if path.suffix.lower() != ".safetensors":
        raise WeightsError(_not_safetensors(path))
    if message := shard_message(path):
        raise WeightsError(message)
    return read_file_header(path)


def is_pickle(path: Path) -> bool:
    """Return whether a file is one of PyTorch's checkpoints, by its name or its first bytes."""
    return path.suffix.lower() in PICKLES or _beginning(path).startswith((b"PK\x03\x04", b"\x80\x02"))


def _not_safetensors(path: Path) -> str:
    """Return what a file of another kind is."""
    if _beginning(path) == LFS_POINTER:
        return lfs_message(path)
    if is_pickle(path):
        return pickle_message(path)
    return f"{path}: expected a .safetensors file, or a folder with {SINGLE} or {INDEX}"


def _beginning(path: Path) -> bytes:
    if not path.is_file():  # opening a pipe would wait for a writer
        return b""
    try:
        with path.open("rb") as file:
            return file.read(len(LFS_POINTER))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read: {error.strerror}") from None


def _open_shards(index: Path) -> Checkpoint:
    """Read the headers of all shards that the index names; index and shards must agree on every tensor."""
    try:
        require_regular(index)
        with index.open("rb") as file:
            text = file.read(MAX_HEADER_BYTES + 1)
        if text.startswith(LFS_POINTER):
            raise WeightsError(lfs_message(index))
        if len(text) > MAX_HEADER_BYTES:
            raise ValueError(f"more than {MAX_HEADER_BYTES:,} bytes")
        weight_map = json.loads(text, parse_int=parse_int)["weight_map"]
        shards = sorted(set(weight_map.values()))
        if not all(isinstance(shard, str) and Path(shard).name == shard for shard in shards):
            raise TypeError("a shard is not a plain file name")
        if any(shard.endswith(PICKLES) for shard in shards):
            raise WeightsError(pickle_message(index.parent))
    except OSError as error:
        raise WeightsError(f"{index}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{index}: not the index of a sharded safetensors checkpoint ({error})") from None
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for shard in shards:
        if not (index.parent / shard).is_file():
            raise WeightsError(
                f"{index}: shard {shard} is missing; the index names {count(len(shards), 'shard')}"
            )
        found = read_file_header(index.parent / shard)
        metadata |= found.metadata
        for name, tensor in found.tensors.items():
            if weight_map.get(name) != shard:
                raise WeightsError(f"{index}: tensor {name!r} is in {shard}, and the index does not say so")
            tensors[name] = tensor
    if absent := sorted(weight_map.keys() - tensors.keys()):
        lacking = f"{count(len(absent), 'tensor')}, the first is {absent[0]!r}"
        raise WeightsError(f"{index}: its shards lack {lacking}")
    return Checkpoint(index.parent, tensors, metadata)
