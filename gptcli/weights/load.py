"""Loading a checkpoint into a model: tensors stay mapped from the file wherever layout and dtype allow."""

from collections.abc import Callable, Iterator
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
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report

HEAD, EMBEDDING = "out_head.weight", "tok_emb.weight"


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
    config, notes = resolve_head(plan, tensors)
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


def resolve_head(
    plan: LoadPlan, tensors: dict[str, Tensor], agree: Callable[[bool], bool] = bool
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Remove an unused head from `tensors`; return the config, tied or not, and notes for the user.

    `tensors` may hold only one rank's shards of head and embedding. Then `agree` is given whether these are
    equal, and returns whether they are equal on all ranks.
    """
    config = plan.config
    if plan.head_is_embedding:
        tensors[EMBEDDING] = tensors.pop(HEAD)
    if plan.head in ("embedding", "own"):
        return config, ()
    equal = agree(torch.equal(tensors[HEAD], tensors[EMBEDDING]))
    if plan.head == "unused":
        del tensors[HEAD]
        note = "the file's head differs from the token embedding and is not used: config.json ties them"
        return config, () if equal else (note,)
    if not equal:
        return config, ()
    del tensors[HEAD]
    return config.model_copy(update={"tie_embeddings": True}), ()
