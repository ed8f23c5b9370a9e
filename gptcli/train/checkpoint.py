"""The checkpoint of a training run, from which it continues as if it had never stopped."""

import pickle
from pathlib import Path
from typing import Any

import torch

from gptcli.errors import ConfigError, WeightsError
from gptcli.model.gpt import GPTModel
from gptcli.train.optimizer import Optimizers

CHECKPOINT = "checkpoint.pt"


def save_checkpoint(
    folder: Path, model: GPTModel, optimizers: Optimizers, settings: dict[str, Any], done: int, best: float
) -> None:
    """Write weights, optimizer states, random generators and progress, whole or not at all."""
    temporary = folder / f".{CHECKPOINT}.part"
    torch.save(
        {
            "done": done,
            "best": best,
            "settings": settings,
            "config": model.config.model_dump(),
            "model": dict(model.named_parameters()),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers.optimizers],
            "generator": torch.get_rng_state(),
            "cuda_generators": _cuda_generators(),
        },
        temporary,
    )
    temporary.replace(folder / CHECKPOINT)


def load_checkpoint(
    folder: Path, model: GPTModel, optimizers: Optimizers, settings: dict[str, Any]
) -> tuple[int, float, int]:
    """Restore the model, optimizers and random generators; return the steps done, the best loss, and the
    steps that the run was planned for, which may differ from those of `settings`.

    Raises `WeightsError` for a file that is missing or corrupt, `ConfigError` for one of another model or
    other settings, or with more steps done than there are now.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise WeightsError(f"--resume: there is no {path}; leave --resume out to begin")
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        differences = _differences(saved["config"], model.config.model_dump())
        planned = saved["settings"]["steps"]
        differences += _differences(saved["settings"] | {"steps": settings["steps"]}, settings)
    except (RuntimeError, pickle.UnpicklingError, KeyError, EOFError, OSError) as error:
        raise WeightsError(f"{path}: corrupt or incomplete: {str(error).splitlines()[0]}") from None
    if differences:
        raise ConfigError(f"{path}: belongs to another run: {'; '.join(differences)}")
    if saved["done"] > settings["steps"]:
        raise ConfigError(f"--steps {settings['steps']}: the run has done {saved['done']} already")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(saved["model"][name])
    for optimizer, state in zip(optimizers.optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    torch.set_rng_state(saved["generator"])
    if saved["cuda_generators"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(saved["cuda_generators"])
    return saved["done"], saved["best"], planned


def _cuda_generators() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    keys = [key for key in now if saved.get(key) != now[key]]
    return [f"{key} was {saved.get(key)!r} and is {now[key]!r}" for key in keys]
