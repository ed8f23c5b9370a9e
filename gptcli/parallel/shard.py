"""A model's part in this process: cut from a checkpoint, or from the random weights of a seed."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.config.partition import Rank, shard_of
from gptcli.model.init import empty, random_tensors
from gptcli.parallel.group import Group
from gptcli.parallel.model import ParallelGPTModel
from gptcli.weights.load import LoadedWeights, resolve_head
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report
from gptcli.weights.shard import read_shards


def load_part(plan: LoadPlan, group: Group, *, dtype: torch.dtype) -> LoadedWeights[ParallelGPTModel]:
    """`load_weights` for one process of many: its model has its parts, and does not yet talk to others."""
    check_report(plan, load_report(plan))
    parts = {name: part.to(group.device, dtype) for name, part in read_shards(plan, group.ranks)}
    config, notes = resolve_head(plan, parts, agree=lambda same: all(group.of_all(same)))
    return LoadedWeights(_model_of(config, parts), config, notes)


def random_part(config: ModelConfig, seed: int, group: Group, *, dtype: torch.dtype) -> ParallelGPTModel:
    """This process's parts of the weights that `random_model` draws, of which it never holds all."""
    parts = {
        name: part.to(group.device, dtype)
        for name, part in _cut(random_tensors(config, seed), config, group.ranks)
    }
    return _model_of(config, parts)


def _cut(
    tensors: Iterator[tuple[str, Tensor]], config: ModelConfig, ranks: Rank
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        part = shard_of(name, config, ranks)
        if part is not None and part.axis is not None:
            yield name, tensor.narrow(part.axis, part.span.start, len(part.span)).clone()
        elif part is not None:
            yield name, tensor


def _model_of(config: ModelConfig, parts: dict[str, Tensor]) -> ParallelGPTModel:
    """A model of exactly these parameters, whatever their shapes; experts without any are left out."""
    model = empty(ParallelGPTModel, config)
    for path, module in list(model.named_modules()):
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            tensor = parts.get(f"{path}.{name}")
            if tensor is not None:
                setattr(module, name, nn.Parameter(tensor, requires_grad=False))
        if names and isinstance(module, nn.Linear) and f"{path}.weight" in parts:
            module.out_features, module.in_features = module.weight.shape
        elif names and f"{path}.{names[0]}" not in parts and module is not model.out_head:
            parent, _, last = path.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
    model.tie_head()
    return model.requires_grad_(False)
