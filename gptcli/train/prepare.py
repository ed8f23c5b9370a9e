"""What a training run needs before its first step: a folder, memory, initial weights, and its signals."""

import signal
from pathlib import Path

import torch

from gptcli.config.cost import count_parameters
from gptcli.config.model_config import ModelConfig
from gptcli.errors import UsageError, WeightsError
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.system.memory import available_bytes, require_memory
from gptcli.train.checkpoint import CHECKPOINT
from gptcli.weights.folders import SINGLE
from gptcli.weights.load import load_weights
from gptcli.weights.source import ModelSource


def initial_model(source: ModelSource, seed: int) -> GPTModel:
    """Return a model with random weights, or with those of a file, copied so that the file never changes."""
    if source.plan is None:
        return random_model(source.config, seed)
    if source.plan.detected.is_int8:
        raise WeightsError(
            f"{source.plan.checkpoint.path}: int8 weights cannot be trained; give the original"
        )
    model = load_weights(source.plan, device=torch.device("cpu"), dtype=torch.float32).model
    for parameter in model.parameters():  # they are still views of the mapped file
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return model.requires_grad_(True)


def check_memory(config: ModelConfig, device: torch.device) -> None:
    """Raise `ResourceError` for a model that does not fit: weight, gradient and AdamW's two, in float32."""
    if device.type == "cpu":
        require_memory(
            16 * count_parameters(config), available_bytes(), "weights, gradients and optimizer states"
        )


def make_folder(folder: Path, *, resume: bool) -> None:
    """Make the run's folder; raises `UsageError` for one that holds another run or a model."""
    folder.mkdir(parents=True, exist_ok=True)
    held = [name for name in (CHECKPOINT, SINGLE) if (folder / name).exists()]
    if held and not resume:
        raise UsageError(
            f"--output {folder}: holds {held[0]} already; --resume continues it, or name another folder"
        )


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a run with a checkpoint; SIGHUP only if it is not ignored, as by nohup."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    is_heeded = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([hangup] if hangup is not None and is_heeded else [])]
