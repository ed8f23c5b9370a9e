"""The way from a model source to this process's shard, after all processes have agreed on the source."""

import torch

from gptcli.config.cost import kv_bytes_per_token
from gptcli.config.partition import check_world_size, parameters_per_rank
from gptcli.engine.torch_engine import TorchEngine
from gptcli.errors import UsageError
from gptcli.model.gpt import GPTModel
from gptcli.parallel.model import ParallelGPTModel
from gptcli.parallel.process_group import ProcessGroup
from gptcli.parallel.shard import shard_of_checkpoint, shard_of_random_model
from gptcli.system.device import Device, free_bytes
from gptcli.system.memory import require_memory
from gptcli.version import __version__
from gptcli.weights.fingerprint import fingerprint
from gptcli.weights.source import ModelSource


def load_shard(
    source: ModelSource,
    group: ProcessGroup,
    *,
    dtype: torch.dtype,
    seed: int,
    cache_tokens: int,
) -> tuple[GPTModel, list[str]]:
    """Return this process's shard of a model, and notes for the user.

    Raises `UsageError` for more processes than the model can be split over, `ResourceError` if a shard does
    not fit, `GptcliError` if another process has another file, config or version.
    """
    config, ranks = source.config, group.ranks
    if source.plan is not None and source.plan.detected.is_int8:
        raise UsageError("a file in int8 is decoded by one process; give the original, with --quantize int8")
    check_world_size(config, ranks.world_size)
    settings: dict[str, object] = {"gptcli version": __version__, "config": config.model_dump(), "seed": seed}
    settings |= {"dtype": str(dtype), "device type": group.device.type}
    if source.plan is not None:
        settings["weights file"] = fingerprint(source.plan.checkpoint)
    settings["tokenizer"] = source.tokenizer_fingerprint
    group.require_same(settings)
    weights = parameters_per_rank(config, ranks) * dtype.itemsize
    cache = kv_bytes_per_token(config, dtype.itemsize) * min(cache_tokens, config.context_length)
    cache = cache * len(ranks.shard_range(config.n_heads)) // config.n_heads
    available = free_bytes(Device(group.device.type, group.device.index))
    if group.device.type == "cpu":
        available //= group.local_size
    what = f"process {ranks.rank}'s shard of the weights ({weights:,}) and key/value cache ({cache:,})"
    require_memory(weights + cache, available, what, "more processes, on more machines")
    if source.plan is not None:
        loaded = shard_of_checkpoint(source.plan, group, dtype=dtype)
        return loaded.model, list(loaded.notes)
    return shard_of_random_model(config, seed, group, dtype=dtype), []


def parallel_engine(model: GPTModel, group: ProcessGroup) -> TorchEngine:
    """Parallelize the model and return the engine that decodes with it."""
    assert isinstance(model, ParallelGPTModel)
    model.parallelize(group)
    return TorchEngine(model, f"PyTorch, {group.ranks.world_size} processes by {group.backend}")
