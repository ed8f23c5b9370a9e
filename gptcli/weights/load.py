"""Loading a checkpoint into a model: tensors stay mapped from the file wherever layout and dtype allow."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from gptcli.config.model_config import ModelConfig
from gptcli.model.arrays import Array
from gptcli.model.gpt import GPTModel
from gptcli.model.init import empty_model
from gptcli.model.int8 import Int8Linear
from gptcli.weights.head import EMBEDDING, HEAD, resolve_head
from gptcli.weights.layouts import is_int8_scale
from gptcli.weights.mapped import map_files, mapped_tensor
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
    Conv1D matrix as its transpose. Weights in int8 stay so. Raises `WeightsError` where tensors
    are missing, unexpected or misshapen.
    """
    check_report(plan, load_report(plan))
    tensors = dict(_read_tensors(plan))
    config, notes = resolve_head(plan, tensors, equal=torch.equal)
    state = {}
    for name, tensor in tensors.items():
        keeps_dtype = tensor.dtype == torch.int8 or is_int8_scale(name)
        state[name] = tensor.to(device=device, dtype=None if keeps_dtype else dtype)
    if config.tie_embeddings:
        state[HEAD] = state[EMBEDDING]
    model = empty_model(config)
    for scale in filter(is_int8_scale, state):
        path = scale.removesuffix(".scale")
        parent, _, child = path.rpartition(".")
        linear = Int8Linear.of(state[f"{path}.weight"], state[scale], state.get(f"{path}.bias"))
        setattr(model.get_submodule(parent), child, linear)
    model.load_state_dict(state, assign=True)
    model.tie_head()
    return LoadedWeights(model.requires_grad_(False), config, notes)


def _read_tensors(plan: LoadPlan) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter that the file holds, by our name: a view of its private mapping."""
    files = map_files(plan.detected.matches, mmap.ACCESS_COPY)  # torch wants memory that may be written
    for match in plan.detected.matches:
        if match.targets:
            whole = mapped_tensor(match.tensor, files[match.tensor.file])
            yield from match.parameters(to_torch(whole, match.tensor.dtype))


def to_torch(array: Array, dtype: str) -> Tensor:
    """Return a tensor that shares the array's memory; `dtype` is the file's, since NumPy has no bfloat16."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "BF16" else tensor
