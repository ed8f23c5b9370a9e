"""The state dict in what a trainer saved, and the config of its model, wherever they lie in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gptcli.config.huggingface import from_huggingface
from gptcli.config.model_config import KEYS
from gptcli.config.nanogpt import from_nanogpt, is_nanogpt
from gptcli.errors import ConfigError, WeightsError
from gptcli.weights.detect import bare_names, shorten
from gptcli.weights.layouts import LAYOUTS

# Where trainers keep it: PyTorch's tutorials, Lightning, nanoGPT, DeepSpeed.
USUAL_KEYS = ("model_state_dict", "state_dict", "model", "module")
MAX_DEPTH = 3  # of mappings in mappings; a hostile file may hold as many as it has bytes

Found = Mapping[str, Any]


def find_state_dict(loaded: Any, path: Path, key: str | None) -> tuple[Found, str]:
    """Return the state dict and its key, which is empty if the file holds nothing else.

    Raises `WeightsError` where there is none, or several and none has a usual key.
    """
    if not isinstance(loaded, Mapping):
        raise WeightsError(f"{path}: holds a {type(loaded).__name__}, where a state dict is expected")
    if key is not None:
        if not isinstance(loaded.get(key), Mapping):
            raise WeightsError(f"{path}: --key {key}: expected one of {shorten(map(str, loaded), most=12)}")
        return loaded[key], key
    if _is_model(loaded):
        return loaded, ""
    inner = {str(name): value for name, value in loaded.items() if isinstance(value, Mapping)}
    models = [name for name, value in inner.items() if _is_model(value)]
    usual = [name for name in USUAL_KEYS if name in models] or [name for name in USUAL_KEYS if name in inner]
    if len(models) > 1 and not usual:
        raise WeightsError(f"{path}: holds several models: {shorten(models)}; name one with --key")
    if chosen := (usual or models):
        return inner[chosen[0]], chosen[0]
    return loaded, ""  # its names are reported as those of no layout


def find_config(loaded: Any, where: str) -> Found | None:
    """Return our config keys for the first config in a checkpoint: ours, nanoGPT's or Hugging Face's."""
    for values in _mappings(loaded, MAX_DEPTH):
        if is_nanogpt(values):
            return from_nanogpt(values)
        if "n_embd" in values and "n_head" in values:
            try:
                return from_huggingface(values, where)
            except ConfigError as error:
                raise WeightsError(str(error)) from None
        if "emb_dim" in values and "n_heads" in values:
            return {key: values[key] for key in KEYS if key in values}
    return None


def _mappings(value: Any, depth: int) -> Iterator[Found]:
    """Yield the mappings in a value that may be configs, outer ones first."""
    if depth and isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            yield value
        for inner in value.values():
            yield from _mappings(inner, depth - 1)


def _is_model(value: Found) -> bool:
    names = [name for name in value if isinstance(name, str) and hasattr(value[name], "shape")]
    return any(bare_names(names, layout) is not None for layout in LAYOUTS)
