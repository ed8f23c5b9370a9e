"""A checkpoint to convert: its header, and its numbers one tensor at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gptcli.model.arrays import Array
from gptcli.weights.header import Checkpoint
from gptcli.weights.mapped import read


@dataclass(frozen=True)
class Tensors:
    """The header of a checkpoint, and a function that reads a tensor by name (bfloat16 as uint16).

    `config` are the config keys that the checkpoint itself holds, `skipped` its keys that are no tensors.
    """

    checkpoint: Checkpoint
    read: Callable[[str], Array]
    config: Mapping[str, Any] | None = None
    skipped: tuple[str, ...] = ()


def tensors_of_files(checkpoint: Checkpoint) -> Tensors:
    """Return the tensors of safetensors files."""
    tensors = checkpoint.tensors
    return Tensors(checkpoint, keep_last(lambda name: read(tensors[name])))


def keep_last(read_one: Callable[[str], Array]) -> Callable[[str], Array]:
    """Return a function that keeps the tensor that it read last: query, key and value are read in turn."""
    return lru_cache(maxsize=1)(read_one)
