"""The source of a conversion: safetensors in any layout, or PyTorch's pickles."""

from pathlib import Path

from gptcli.convert.tensors import Tensors, tensors_of_files
from gptcli.errors import WeightsError
from gptcli.weights.files import is_pickle, open_checkpoint
from gptcli.weights.folders import SHARD, find_weights, snapshot, weights_pickles
from gptcli.weights.header import require_regular


def open_source(path: Path, key: str | None) -> Tensors:
    """Return the tensors of a file or folder; a folder's pickles are taken where it has no safetensors.

    `key` names the state dict in a pickle. Raises `WeightsError` for what is neither.
    """
    pickles = _pickles_of(path)
    if pickles:
        from gptcli.convert.pickles import join_pickles, read_pickle  # which import torch

        return join_pickles(path, [read_pickle(pickle, key) for pickle in pickles])
    return tensors_of_files(open_checkpoint(path))


def _pickles_of(path: Path) -> list[Path]:
    """Return the one pickle that a path names, or the shards in a folder; nothing for other sources."""
    if path.name.endswith(".bin.index.json"):
        path = path.parent
    if path.is_file():
        return [path] if is_pickle(path) else []
    if not path.is_dir():
        if path.exists():
            require_regular(path)
        return []
    path = snapshot(path)
    try:
        find_weights(path)
    except WeightsError:
        pickles = weights_pickles(path)
        shards = [pickle for pickle in pickles if SHARD.search(pickle.name)]
        usual = [pickle for pickle in pickles if pickle.name == "pytorch_model.bin"]
        if len(shards) == len(pickles) or len(pickles) == 1:
            return pickles
        if usual:
            return usual
        raise
    return []
