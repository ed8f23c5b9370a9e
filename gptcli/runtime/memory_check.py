"""Checks before anything is loaded: the dtype, and whether weights and cache fit into memory."""

from collections import Counter

from gptcli.config.cost import count_parameters, kv_bytes_per_token
from gptcli.config.dtypes import COMPUTE_DTYPES, DTYPES, SAFETENSORS_DTYPES
from gptcli.config.presets import preset_source, resolve
from gptcli.system.device import Device, free_bytes
from gptcli.system.memory import require_memory
from gptcli.weights.source import ModelSource


def choose_dtype(name: str, source: ModelSource, device: Device) -> tuple[str, list[str]]:
    """Return the dtype, which for `auto` is float32 on a CPU and the file's own on a GPU, and notes on it."""
    if name != "auto" or source.plan is None:
        return ("float32" if name == "auto" else name), []
    sizes: Counter[str] = Counter()
    for tensor in source.plan.checkpoint.tensors.values():
        stored = SAFETENSORS_DTYPES[tensor.dtype].name
        if stored == "int8":  # its scales and products are floats
            continue
        sizes[stored if stored in COMPUTE_DTYPES else "float32"] += tensor.n_bytes
    in_file = max(sizes, key=lambda dtype: sizes[dtype], default="float32")
    if device.type != "cpu" or in_file == "float32":
        return in_file, []
    note = f"the file holds {in_file}; on a CPU it runs as float32 (--dtype {in_file} keeps it)"
    return "float32", [] if source.plan.ships or source.plan.detected.is_int8 else [note]


def check_memory(
    source: ModelSource, device: Device, dtype: str, cache_tokens: int, *, quantize: bool
) -> None:
    """Raise `ResourceError` unless weights and a cache of `cache_tokens` fit; it names what would."""
    needed, available, what = _needed(source, device, dtype, cache_tokens, quantize)
    if needed > available:
        require_memory(needed, available, what, _what_fits(source, device, dtype, cache_tokens, quantize))


def _what_fits(source: ModelSource, device: Device, dtype: str, cache_tokens: int, quantize: bool) -> str:
    """Return what else would fit: a smaller dtype, the largest smaller preset."""
    fitting = []
    for smaller in ("bfloat16",) if dtype == "float32" else ():
        needed, available, _ = _needed(source, device, smaller, cache_tokens, quantize)
        if needed <= available:
            fitting.append(f"--dtype {smaller}")
    if source.plan is None:
        for preset in ("gpt2-large", "gpt2-medium", "gpt2-small", "stories"):
            other = ModelSource(resolve([preset_source(preset)]))
            needed, available, _ = _needed(other, device, dtype, cache_tokens, quantize)
            if needed <= available and count_parameters(other.config) < count_parameters(source.config):
                fitting.append(f"--preset {preset}")
                break
    return " or ".join(fitting) or "a machine with more"


def _needed(
    source: ModelSource, device: Device, dtype: str, cache_tokens: int, quantize: bool
) -> tuple[int, int, str]:
    """Return the bytes that are needed, those that are available, and what needs them."""
    element, config, is_cpu = DTYPES[dtype].n_bytes, source.config, device.type == "cpu"
    cache = kv_bytes_per_token(config, 4 if is_cpu else element) * min(cache_tokens, config.context_length)
    weights = count_parameters(config) * element
    if is_cpu and source.plan is not None:  # mapped tensors take none
        tensors = source.plan.checkpoint.tensors.values()
        copied = sum(t.n_bytes for t in tensors if SAFETENSORS_DTYPES[t.dtype].name not in (dtype, "int8"))
        weights = min(weights, copied * element // 2)
    elif is_cpu and dtype != "float32":  # drawn in float32 first
        weights += count_parameters(config) * 4
    if is_cpu and quantize:
        if source.plan is not None:  # only embeddings keep their dtype
            weights = min(weights, (config.vocab_size + config.context_length) * config.emb_dim * element)
        weights += count_parameters(config)
    what = f"{'int8 and ' if quantize else ''}{dtype} weights ({weights:,}) and key/value cache ({cache:,})"
    return weights + cache, free_bytes(device), what
