"""A checkpoint to convert: its header, and its numbers one tensor at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gptcli.weights.header import Checkpoint
from gptcli.weights.mapping import Array, map_file, view


@dataclass(frozen=True)
class Tensors:
    """The header of a checkpoint, and a function that reads a tensor by name (bfloat16 as uint16).

    `config` are the config keys that the checkpoint itself holds, `skipped` its keys that are no tensors.
    """

    checkpoint: Checkpoint
    read: Callable[[str], Array]
    config: Mapping[str, Any] | None = None
    skipped: tuple[str, ...] = ()


def mapped_tensors(checkpoint: Checkpoint) -> Tensors:
    """Return the tensors of safetensors files; each is a view of a mapping that lives as long as the view."""
    tensors = checkpoint.tensors
    return Tensors(checkpoint, lambda name: view(tensors[name], map_file(tensors[name])))
