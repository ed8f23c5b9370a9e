"""From what the user asked for to a model that is ready to decode: weights, device, dtype."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from gptcli.config.cost import count_parameters, kv_bytes_per_token
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import ResolvedConfig, preset_layer, resolve
from gptcli.decode.speculation import Drafts
from gptcli.engine.onednn import use_onednn
from gptcli.engine.switch import Switch
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.model.int8 import quantize_int8
from gptcli.system.device import find_device, free_bytes
from gptcli.system.memory import keep_freed, require
from gptcli.weights.load import load_weights
from gptcli.weights.plan import LoadPlan

if TYPE_CHECKING:
    from gptcli.engine.cuda_graphs import GraphSteps
    from gptcli.engine.torch_engine import ModelSteps
    from gptcli.parallel.process_group import ProcessGroup

Speculation = Literal["auto", "lookup", "self", "off"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FILE_DTYPES = {"BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class ReadyModel:
    """A model on its device, in evaluation mode; `dtype` by its name, notes for the user.

    `weight_bytes` are those of all weights (a tied head counts once), `bytes_per_step` those that decoding
    one token reads; both of all processes together, where a model is cut over a `group` of them. `engine`
    decodes faster on a CPU, once it has been prepared.
    """

    model: GPTModel
    config: ModelConfig
    device: torch.device
    dtype: str
    load_seconds: float
    notes: tuple[str, ...]
    weight_bytes: int
    bytes_per_step: int
    engine: Switch | GraphSteps | ModelSteps | None = None
    group: ProcessGroup | None = None

    def drafts(self, how: Speculation = "auto", most: int | None = None) -> Drafts | None:
        """Guesses for one request, at most so many at once; None for none."""
        if how == "off":
            return None
        drafter = self.engine.guesser if isinstance(self.engine, Switch) and how != "lookup" else None
        # Several processes must check the same guesses, and each would measure something else.
        return Drafts(most, measures=self.group is None, lookup=how != "self", drafter=drafter)


def make_ready(
    source: ResolvedConfig | LoadPlan,
    *,
    device: str,
    dtype: str,
    seed: int,
    cache_tokens: int,
    quantize: bool = False,
    group: ProcessGroup | None = None,
) -> ReadyModel:
    """Load a planned checkpoint, or draw random weights for a config; what does not fit is refused first.

    `device` and `dtype` are the command line's names, `auto` among them. `cache_tokens` is the length of the
    key/value cache that decoding will want; `quantize` makes the linears int8. With a `group` this process
    holds its part of the model, on the group's device. Raises `DeviceError`, `ResourceError`, `WeightsError`.
    """
    start = time.perf_counter()
    place = find_device(device) if group is None else group.device
    chosen, notes = choose_dtype(dtype, source, place)
    model, more_notes = (
        _whole(source, place, chosen, seed, cache_tokens)
        if group is None
        else _part(source, group, chosen, seed, cache_tokens)
    )
    notes = [*more_notes, *notes]
    if not isinstance(source, LoadPlan):
        notes.insert(
            0, f"the weights are random (seed {seed}), so the text is noise; --weights loads real ones"
        )
    if place.type == "cpu" and chosen == "float16":
        _by_rows(model)
    if quantize:
        quantize_int8(model)
        chosen = f"int8 with {chosen}"
    if place.type == "cpu":
        use_onednn(model)
        keep_freed()
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    n_bytes = [_bytes(model)]
    if group is not None:
        n_bytes = group.all_gather_object(n_bytes[0])
    engine = _engine(model) if group is None else _share(model, group)
    return ReadyModel(
        model=model,
        config=model.config,
        device=place,
        dtype=chosen,
        load_seconds=time.perf_counter() - start,
        notes=tuple(notes),
        weight_bytes=sum(held for held, _ in n_bytes),
        bytes_per_step=sum(read for _, read in n_bytes),
        engine=engine,
        group=group,
    )


def _whole(
    source: ResolvedConfig | LoadPlan, device: torch.device, dtype: str, seed: int, cache_tokens: int
) -> tuple[GPTModel, list[str]]:
    """All of a model, and what the user should know of its file."""
    needed, available, what = _memory(source, device, dtype, cache_tokens)
    if needed > available:
        require(needed, available, what, _what_fits(source, device, dtype, cache_tokens))
    if isinstance(source, LoadPlan):
        loaded = load_weights(source, device=device, dtype=DTYPES[dtype])
        return loaded.model, [*source.notes, *loaded.notes]
    # Drawn on the CPU in float32, then cast and moved: every device prints the same text.
    model = random_model(source.config, seed).requires_grad_(False).to(device=device, dtype=DTYPES[dtype])
    model.tie_head()
    return model, []


def _part(
    source: ResolvedConfig | LoadPlan, group: ProcessGroup, dtype: str, seed: int, cache_tokens: int
) -> tuple[GPTModel, list[str]]:
    """This process's part of a model, and what the user should know of its file."""
    from gptcli.parallel.load import load_shard

    return load_shard(source, group, dtype=DTYPES[dtype], seed=seed, cache_tokens=cache_tokens)


def _engine(model: GPTModel) -> Switch | GraphSteps:
    """What decodes faster than the model alone."""
    device = model.tok_emb.weight.device
    if device.type == "cpu":
        return Switch(model)
    from gptcli.engine.cuda_graphs import CudaGraphs, GraphSteps

    return GraphSteps(model, CudaGraphs(device))


def _share(model: GPTModel, group: ProcessGroup) -> ModelSteps:
    from gptcli.parallel.load import parallel_engine
    from gptcli.parallel.model import ParallelGPTModel

    assert isinstance(model, ParallelGPTModel)
    return parallel_engine(model, group)


def _bytes(model: GPTModel) -> tuple[int, int]:
    """Bytes of all weights, and of those that decoding one token reads.

    These are all but the embeddings, unless one is the head too.
    """
    weight_bytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    looked_up = [model.pos_emb.weight]
    if model.out_head.weight is not model.tok_emb.weight:
        looked_up.append(model.tok_emb.weight)
    return weight_bytes, weight_bytes - sum(p.nbytes for p in looked_up)


def _by_rows(model: GPTModel) -> None:
    """Matrices of half precision by rows: by columns a product on a CPU takes thirty times as long."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.contiguous()


def choose_dtype(name: str, source: ResolvedConfig | LoadPlan, device: torch.device) -> tuple[str, list[str]]:
    """The dtype for `auto`: float32 on a CPU, the file's own on a GPU; with a note where that is news."""
    if name != "auto" or not isinstance(source, LoadPlan):
        return ("float32" if name == "auto" else name), []
    sizes: Counter[str] = Counter()
    for tensor in source.checkpoint.tensors.values():
        sizes[_FILE_DTYPES.get(tensor.dtype, "float32")] += tensor.n_bytes
    in_file = max(sizes, key=lambda dtype: sizes[dtype])
    if device.type != "cpu" or in_file == "float32":
        return in_file, []
    note = f"the file holds {in_file}; on a CPU it runs as float32 (--dtype {in_file} keeps it)"
    return "float32", [] if source.ships else [note]


def _what_fits(source: ResolvedConfig | LoadPlan, device: torch.device, dtype: str, cache_tokens: int) -> str:
    """What else would fit, to be named where this does not: a smaller dtype, the largest smaller preset."""
    fitting = []
    for smaller in ("bfloat16",) if dtype == "float32" else ():
        needed, available, _ = _memory(source, device, smaller, cache_tokens)
        if needed <= available:
            fitting.append(f"--dtype {smaller}")
    if isinstance(source, ResolvedConfig):
        for preset in ("gpt2-large", "gpt2-medium", "gpt2-small", "stories"):
            other = resolve([preset_layer(preset)])
            needed, available, _ = _memory(other, device, dtype, cache_tokens)
            if needed <= available and count_parameters(other.config) < count_parameters(source.config):
                fitting.append(f"--preset {preset}")
                break
    return " or ".join(fitting) or "a machine with more"


def _memory(
    source: ResolvedConfig | LoadPlan, device: torch.device, dtype: str, cache_tokens: int
) -> tuple[int, int, str]:
    """Bytes needed, bytes there are, and what needs them."""
    element = DTYPES[dtype].itemsize
    config = source.config
    cache = kv_bytes_per_token(config, element) * min(cache_tokens, config.context_length)
    weights = count_parameters(config) * element
    if device.type == "cpu" and isinstance(source, LoadPlan):  # mapped tensors take none
        stored = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[dtype]
        copied = sum(t.n_bytes for t in source.checkpoint.tensors.values() if t.dtype != stored)
        weights = min(weights, copied * element // 2)
    elif device.type == "cpu" and dtype != "float32":  # drawn in float32 first
        weights += count_parameters(config) * 4
    what = f"{dtype} weights ({weights:,}) and key/value cache ({cache:,})"
    return weights + cache, free_bytes(device), what
