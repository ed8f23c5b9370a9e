"""Loading a checkpoint into a model: tensors stay mapped from the file wherever layout and dtype allow."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gptcli.config.model_config import ModelConfig
from gptcli.errors import WeightsError
from gptcli.model.gpt import GPTModel
from gptcli.model.init import empty_model
from gptcli.weights.detect import TensorMatch
from gptcli.weights.head import EMBEDDING, HEAD, resolve_head
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report

Model = TypeVar("Model", bound=GPTModel)


@dataclass(frozen=True)
class LoadedWeights(Generic[Model]):
    """A model with its weights, in evaluation mode; its final config; notes on its head for the user."""

    model: Model
    config: ModelConfig
    notes: tuple[str, ...]


def load_weights(plan: LoadPlan, *, device: torch.device, dtype: torch.dtype) -> LoadedWeights[GPTModel]:
    """Return a model with the checkpoint's weights in `dtype` on `device`.

    On the CPU and in the file's own dtype nothing is copied: every parameter is a view of the mapped file, a
    Conv1D matrix as its transpose. Raises `WeightsError` where tensors are missing, unexpected or misshapen.
    """
    check_report(plan, load_report(plan))
    tensors = dict(_read_tensors(plan))
    config, notes = resolve_head(plan, tensors, equal=torch.equal)
    state = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    if config.tie_embeddings:
        state[HEAD] = state[EMBEDDING]
    model = empty_model(config)
    model.load_state_dict(state, assign=True)
    model.tie_head()
    return LoadedWeights(model.requires_grad_(False), config, notes)


def _read_tensors(plan: LoadPlan) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter that the file holds, by our name."""
    for path in plan.checkpoint.files:
        matches = [match for match in plan.detected.matches if match.tensor.file == path]
        try:
            with safe_open(path, framework="pt") as file:
                for match in matches:
                    yield from zip(
                        match.targets, _to_parameters(match, file.get_tensor(match.name)), strict=True
                    )
        except SafetensorError as error:
            raise WeightsError(f"{path}: corrupt or incomplete: {error}") from None


def _to_parameters(match: TensorMatch, tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensor as the parameters that it fills, in our orientation: views, no copies."""
    match match.rule.transform:
        case "ignore":
            return ()
        case "same":
            return (tensor,)
        case "transpose":
            return (tensor.t(),)
        case "split":
            return tuple(part.t() if part.ndim == 2 else part for part in tensor.chunk(3, dim=-1))
