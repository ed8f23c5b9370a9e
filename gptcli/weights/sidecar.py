"""The config files next to a checkpoint: `config.json`, and the end tokens of `generation_config.json`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gptcli.config.files import read_config_file
from gptcli.config.huggingface import END_KEYS
from gptcli.config.model_config import ModelConfig, shorten_value
from gptcli.config.presets import ConfigSource, file_source
from gptcli.errors import ConfigError, WeightsError
from gptcli.weights.detect import DetectedLayout
from gptcli.weights.infer import PRESENCE_KEYS, SIZE_KEYS, fitting_preset
from gptcli.weights.layouts import HUGGINGFACE

GENERATION_CONFIG = "generation_config.json"


def read_sidecar(detected: DetectedLayout) -> ConfigSource:
    """Return `config.json` from the folder of the weights; an empty source where there is none."""
    path = detected.checkpoint.config_path
    if path is None:
        return ConfigSource("weights", "", {})
    try:
        is_theirs = detected.layout is HUGGINGFACE
        source = file_source(path, all_sizes=False, theirs_if_unclear=is_theirs)
        return replace(source, values={**source.values, **_read_end_tokens(path)}, origin="weights")
    except ConfigError as error:  # a fault of the weights' folder, not of the command line
        raise WeightsError(str(error)) from None


def _read_end_tokens(config_path: Path) -> dict[str, Any]:
    """Return the ids that end and begin a text by the `generation_config.json` next to a config.

    They are preferred to those of the config, which give what is absent here (transformers then has none).
    Settings of sampling do not count: greedy stays the default.
    """
    path = config_path.with_name(GENERATION_CONFIG)
    if not path.is_file():
        return {}
    values = read_config_file(path)
    declared = {key: values[key] for key in END_KEYS if key in values}
    for key, value in declared.items():
        ids = value if key == "eos_token_id" and isinstance(value, list) else [value]
        if value is not None and any(type(each) is not int for each in ids):
            raise ConfigError(f"{path}: {key} must be the id of a token, got {shorten_value(value)}")
    return declared


def check_sidecar(sidecar: ConfigSource, inferred: Mapping[str, Any]) -> None:
    """Raise `WeightsError` if the sidecar's sizes and biases are not those of the tensors."""
    declared = sidecar.values
    wrong = [
        key for key in SIZE_KEYS if key in declared and key in inferred and declared[key] != inferred[key]
    ]
    # A bias that only the file has is used, with a note; one that only the sidecar declares is an error.
    wrong += [key for key in PRESENCE_KEYS if declared.get(key) is True and not inferred[key]]
    if wrong:
        claimed = ", ".join(f"{key} {declared[key]}" for key in wrong)
        held = ", ".join(f"{key} {inferred[key]}" for key in wrong)
        preset = fitting_preset(inferred)
        fits = f" (they are those of {preset})" if preset else ""
        raise WeightsError(f"{sidecar.name} says {claimed}, and the tensors next to it have {held}{fits}")


def update_end_tokens(folder: Path, config: ModelConfig) -> None:
    """Write a config's end and begin tokens into its folder's `generation_config.json`, if that has others.

    That file counts before `config.json`, and may be an older model's.
    """
    path, part = folder / GENERATION_CONFIG, folder / f".{GENERATION_CONFIG}.part"
    if not path.is_file():
        return
    try:
        values = read_config_file(path)
    except ConfigError:  # it would be refused with the new model, too
        values = dict.fromkeys(END_KEYS)
    ids = {key: value for key, value in config.model_dump(mode="json").items() if key in END_KEYS}
    changed = {key: value for key, value in ids.items() if key in values and values[key] != value}
    if changed:
        part.write_text(json.dumps({**values, **changed}, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
