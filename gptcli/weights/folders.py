"""The weights in a folder: the file to read, or one line that says what the folder is instead."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gptcli.errors import WeightsError
from gptcli.weights.detect import adapter_message, detect_layout, shorten
from gptcli.weights.header import read_file_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAX_COMMIT_LENGTH = 100
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.[a-z]+$")
# Pickles that a Trainer writes next to the weights.
NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states)[\w.]*")


def find_weights(folder: Path) -> Path:
    """Return the safetensors file of a folder, or the index of its shards.

    A folder of the Hugging Face cache stands for its snapshot. Raises `WeightsError` for a folder without
    one model, with what it holds and what to do next.
    """
    folder = snapshot(folder)
    found = next((folder / name for name in (SINGLE, INDEX) if (folder / name).is_file()), None)
    if any((folder / name).is_file() for name in ("adapter_config.json", "adapter_model.safetensors")):
        reason = "it has adapter_config.json" if found is None else f"with {found.name} next to it"
        raise WeightsError(adapter_message(folder, reason))
    return found or _only_model(folder) or _raise_for_what_there_is(folder)


def shard_message(path: Path) -> str | None:
    """Return the message for one shard of several, by its name; None for another file."""
    match = SHARD.search(path.name)
    if match is None or int(match[2]) < 2:
        return None
    shards = f"{path}: shard {int(match[1])} of {int(match[2])} of a model"
    if (path.parent / INDEX).is_file():
        return f"{shards}; give the folder, {path.parent}"
    return f"{shards}; put all of them and {INDEX} into one folder, and give the folder"


def pickle_message(path: Path) -> str:
    """Return why a pickle is refused, and the command that converts it to safetensors."""
    return (
        f"{path}: a pickle can run code when it is opened, so only safetensors is read; convert it:"
        f" python -m gptcli.convert {shlex.quote(str(path))} OUTPUT_DIR"
    )


def weights_pickles(folder: Path) -> list[Path]:
    """Return the pickles of a folder that may be weights, without what a Trainer writes next to them."""
    files = sorted(path for path in folder.iterdir() if path.suffix in PICKLES and path.is_file())
    return [path for path in files if not NOT_WEIGHTS.fullmatch(path.name)]


def snapshot(folder: Path) -> Path:
    """Return the snapshot in a folder of the Hugging Face cache, `models--owner--name`; else the folder."""
    snapshots = folder / "snapshots"
    if not (folder.name.startswith("models--") and snapshots.is_dir()):
        return folder
    main = folder / "refs" / "main"
    if main.is_file():
        with main.open("rb") as file:
            commit = file.read(MAX_COMMIT_LENGTH).decode("ascii", errors="replace").strip()
        if commit.isalnum() and (snapshots / commit).is_dir():
            return snapshots / commit
    there = sorted(path for path in snapshots.iterdir() if path.is_dir())
    if len(there) == 1:
        return there[0]
    names = shorten([path.name for path in there]) or "none"
    raise WeightsError(f"{folder}: expected one snapshot in this cache, found {names}; give its folder")


def _only_model(folder: Path) -> Path | None:
    """Return the only safetensors file, or the only one that is a model; None if there is none."""
    files = sorted(path for path in folder.glob("*.safetensors") if not path.is_dir())
    if files and (message := shard_message(files[0])):
        raise WeightsError(message)
    models = [path for path in files if len(files) == 1 or _is_model(path)]
    if files and len(models) != 1:
        which = "none of them is a model" if not models else "several of them are models"
        names = shorten([path.name for path in models or files])
        raise WeightsError(f"{folder}: {which}: {names}; give one file itself")
    return models[0] if models else None


def _is_model(path: Path) -> bool:
    try:
        detect_layout(read_file_header(path))
    except WeightsError:
        return False
    return True


def _raise_for_what_there_is(folder: Path) -> NoReturn:
    """Raise `WeightsError` for a folder without safetensors, naming what it holds instead."""
    neither = f"{folder}: neither {SINGLE} nor {INDEX} in this folder"
    pickles = weights_pickles(folder)
    if len(pickles) == 1 or _is_sharded(pickles):
        raise WeightsError(pickle_message(pickles[0] if len(pickles) == 1 else folder))
    if pickles:
        names = shorten([path.name for path in pickles])
        raise WeightsError(f"{neither}; of its pickles, {names}, python -m gptcli.convert converts one")
    inner = [path for path in folder.iterdir() if path.is_dir() and _holds_weights(path)]
    if inner:
        latest = max(inner, key=lambda path: (_step(path), path.name))
        raise WeightsError(f"{neither}; its subfolder has weights: give {latest}")
    raise WeightsError(neither)


def _is_sharded(pickles: Sequence[Path]) -> bool:
    return bool(pickles) and all(SHARD.search(path.name) for path in pickles)


def _holds_weights(folder: Path) -> bool:
    return any(path.suffix == ".safetensors" for path in folder.iterdir()) or bool(weights_pickles(folder))


def _step(folder: Path) -> int:
    """Return the number of a Trainer's folder such as `checkpoint-500`; -1 for another name."""
    match = re.fullmatch(r"checkpoint-(\d{1,12})", folder.name)
    return int(match[1]) if match else -1
