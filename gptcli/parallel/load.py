"""From what the user asked for to this process's part of it, once all are known to be asked the same."""

import hashlib

import torch

from gptcli.config.cost import kv_bytes_per_token
from gptcli.config.partition import check_world_size, parameters_per_rank
from gptcli.engine.torch_engine import TorchEngine
from gptcli.model.gpt import GPTModel
from gptcli.parallel.group import Group
from gptcli.parallel.model import ParallelGPTModel
from gptcli.parallel.shard import load_part, random_part
from gptcli.system.device import free_bytes
from gptcli.system.memory import require_memory
from gptcli.version import __version__
from gptcli.weights.header import Checkpoint, TensorInfo
from gptcli.weights.source import ModelSource

# Of each tensor so many bytes are compared at its beginning and its end: two trainings differ everywhere.
COMPARED_BYTES = 4096


def load_shard(
    source: ModelSource, group: Group, *, dtype: torch.dtype, seed: int, cache_tokens: int
) -> tuple[GPTModel, list[str]]:
    """This process's part of a model, and what the user should know of it.

    Raises `UsageError` for more processes than can share it, `ResourceError` where a part does not fit,
    `GptcliError` where another process has another file, config or version.
    """
    config, ranks = source.config, group.ranks
    check_world_size(config, ranks.world_size)
    facts: dict[str, object] = {"version of gptcli": __version__, "config": config.model_dump(), "seed": seed}
    facts |= {"dtype": str(dtype), "device type": group.device.type}
    if source.plan is not None:
        facts["weights file"] = _fingerprint(source.plan.checkpoint)
    group.require_same(facts)
    weights = parameters_per_rank(config, ranks) * dtype.itemsize
    cache = kv_bytes_per_token(config, dtype.itemsize) * min(cache_tokens, config.context_length)
    cache = cache * len(ranks.shard_range(config.n_heads)) // config.n_heads
    available = free_bytes(group.device)
    if group.device.type == "cpu":
        available //= group.n_on_this_machine
    what = f"process {ranks.rank}'s part of the weights ({weights:,}) and key/value cache ({cache:,})"
    require_memory(weights + cache, available, what, "more processes, on more machines")
    if source.plan is not None:
        loaded = load_part(source.plan, group, dtype=dtype)
        return loaded.model, [*source.plan.notes, *loaded.notes]
    return random_part(config, seed, group, dtype=dtype), []


def connect_shards(model: GPTModel, group: Group) -> TorchEngine:
    """Let the shards of all processes work together, and return the engine that computes with them."""
    assert isinstance(model, ParallelGPTModel)
    model.share(group)
    return TorchEngine(model, f"PyTorch, {group.ranks.world_size} processes by {group.backend}")


def _fingerprint(checkpoint: Checkpoint) -> str:
    """What tells one weights file from another, from its header and a little of each tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(repr((name, tensor.dtype, tensor.shape)).encode())
        digest.update(_ends(tensor))
    return digest.hexdigest()


def _ends(tensor: TensorInfo) -> bytes:
    with tensor.file.open("rb") as file:
        file.seek(tensor.data_start + tensor.begin)
        beginning = file.read(min(COMPARED_BYTES, tensor.n_bytes))
        file.seek(tensor.data_start + max(tensor.begin, tensor.end - COMPARED_BYTES))
        return beginning + file.read(min(COMPARED_BYTES, tensor.n_bytes))
