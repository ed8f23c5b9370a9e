"""This process's shard of a model, from a checkpoint or from the random weights of a seed."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gptcli.config.model_config import ModelConfig
from gptcli.config.partition import Rank, shard_of
from gptcli.model.init import empty, random_tensors
from gptcli.parallel.model import ParallelGPTModel
from gptcli.parallel.process_group import ProcessGroup
from gptcli.weights.head import resolve_head
from gptcli.weights.load import LoadedWeights
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report
from gptcli.weights.shard import read_shards


def shard_of_checkpoint(
    plan: LoadPlan, group: ProcessGroup, *, dtype: torch.dtype
) -> LoadedWeights[ParallelGPTModel]:
    """Load this process's shard of a checkpoint; its model does not communicate until it is parallelized."""
    check_report(plan, load_report(plan))
    shards = {name: shard.to(group.device, dtype) for name, shard in read_shards(plan, group.ranks)}
    config, notes = resolve_head(
        plan, shards, equal=torch.equal, agree=lambda same: all(group.all_gather_object(same))
    )
    return LoadedWeights(_model_of(config, shards), config, notes)


def shard_of_random_model(
    config: ModelConfig, seed: int, group: ProcessGroup, *, dtype: torch.dtype
) -> ParallelGPTModel:
    """Return this process's shard of what `random_model` draws; it never holds the whole model."""
    shards = {
        name: shard.to(group.device, dtype)
        for name, shard in _sharded(random_tensors(config, seed), config, group.ranks)
    }
    return _model_of(config, shards)


def _sharded(
    tensors: Iterator[tuple[str, Tensor]], config: ModelConfig, ranks: Rank
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        part = shard_of(name, config, ranks)
        if part is not None and part.axis is not None:
            yield name, tensor.narrow(part.axis, part.span.start, len(part.span)).clone()
        elif part is not None:
            yield name, tensor


def _model_of(config: ModelConfig, shards: dict[str, Tensor]) -> ParallelGPTModel:
    """Return a model with exactly these parameters, of any shapes; it leaves out experts without any."""
    model = empty(ParallelGPTModel, config)
    for path, module in list(model.named_modules()):
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            tensor = shards.get(f"{path}.{name}")
            if tensor is not None:
                setattr(module, name, nn.Parameter(tensor, requires_grad=False))
        if names and isinstance(module, nn.Linear) and f"{path}.weight" in shards:
            module.out_features, module.in_features = module.weight.shape
        elif names and f"{path}.{names[0]}" not in shards and module is not model.out_head:
            parent, _, last = path.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Identity())
    model.tie_head()
    return model.requires_grad_(False)
