"""The forms of weights on disk: one safetensors file, or a folder with one or with an index of shards."""

import json
from pathlib import Path

from gptcli.config.files import parse_int
from gptcli.errors import WeightsError, count
from gptcli.weights.header import (
    LFS_POINTER,
    MAX_HEADER_BYTES,
    Checkpoint,
    TensorInfo,
    lfs_message,
    read_file_header,
)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of the weights at `path`; raise `WeightsError` for anything but safetensors."""
    if not path.exists():
        raise WeightsError(f"{path}: no such weights file or folder")
    if path.is_dir():
        return _open_folder(path)
    if path.suffix.lower() in PICKLES:
        raise WeightsError(pickle_message(path))
    if path.name.endswith(".index.json"):
        return _open_shards(path)
    if path.suffix.lower() != ".safetensors":
        raise WeightsError(f"{path}: expected a .safetensors file, or a folder with {SINGLE} or {INDEX}")
    return read_file_header(path)


def pickle_message(path: Path) -> str:
    """Return why a pickle is refused, and two lines of Python that convert it to safetensors."""
    target = str(path.with_suffix(".safetensors"))
    return (
        f"{path}: a pickle can run code when it is opened, so only safetensors is read; to convert it:\n"
        f"import torch, safetensors.torch as st;"
        f" d = torch.load({str(path)!r}, map_location='cpu', weights_only=True)\n"
        "st.save_file({k: v.clone() for k, v in d.get('model_state_dict', d).items()}, "
        f"{target!r}, metadata={{'format': 'pt'}})"
    )


def _open_folder(folder: Path) -> Checkpoint:
    if (folder / INDEX).is_file() and not (folder / SINGLE).is_file():
        return _open_shards(folder / INDEX)
    if (folder / SINGLE).is_file():
        found = read_file_header(folder / SINGLE)
        return Checkpoint(folder, found.tensors, found.metadata)
    weights = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", *PICKLES))
    if len(weights) == 1 and weights[0].suffix in PICKLES:
        raise WeightsError(pickle_message(weights[0]))
    hint = f"; there is {weights[0].name}: name the file itself" if weights else ""
    raise WeightsError(f"{folder}: neither {SINGLE} nor {INDEX} in this folder{hint}")


def _open_shards(index: Path) -> Checkpoint:
    """Read the headers of all shards that the index names; index and shards must agree on every tensor."""
    try:
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
