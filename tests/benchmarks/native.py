"""The native engine next to the Numba engine: python -m tests.benchmarks.native [--rounds N] [--threads N]

Random GPT-2 small in Hugging Face's layout: tokens/s after 16 and 512 tokens, with GB/s, a prompt of 512, and
what several tokens at once cost. Both engines take turns in every round; medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from gptcli.engine.cpu import CpuEngine
from gptcli.engine.native.arrays import Array
from gptcli.engine.native.engine import NativeEngine
from gptcli.engine.native.library import active_variant
from gptcli.model.cache import KVCache
from gptcli.model.gpt import GPTModel
from gptcli.model.init import random_model
from gptcli.presets import resolve_options
from gptcli.quantize import Int8Linear, quantize_int8
from tests.benchmarks.timing import interleaved

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}
STEPS = 12


def model_in(dtype: str) -> GPTModel:
    """Return random GPT-2 small, its linears by columns, query, key and value in one matrix."""
    model = random_model(resolve_options("gpt2-small", None, []).config, 0).to(DTYPES[dtype])
    with torch.no_grad():
        for block in model.trf_blocks:
            att, ff = block.att, block.ff
            qkv = torch.cat([att.W_query.weight, att.W_key.weight, att.W_value.weight]).T.contiguous().T
            for linear, part in zip((att.W_query, att.W_key, att.W_value), qkv.chunk(3), strict=True):
                linear.weight = nn.Parameter(part)
            for linear in (att.out_proj, ff.layers[0], ff.layers[2]):
                linear.weight = nn.Parameter(linear.weight.T.contiguous().T)
    return (quantize_int8(model) if dtype == "int8" else model).requires_grad_(False)


def arrays_of(model: GPTModel) -> dict[str, Array]:
    """Return the same memory by the tutorial's names."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        is_bfloat16 = tensor.dtype == torch.bfloat16
        arrays[name] = tensor.view(torch.int16).numpy().view(np.uint16) if is_bfloat16 else tensor.numpy()
    if not isinstance(model.out_head, Int8Linear):
        del arrays["out_head.weight"]  # tied
    return arrays


def weight_bytes(arrays: dict[str, Array]) -> int:
    """Return the bytes that a step reads: all but embeddings; a tied head counts."""
    untied = "out_head.weight" in arrays
    return sum(
        a.nbytes
        for name, a in arrays.items()
        if name != "pos_emb.weight" and not (untied and "tok_emb" in name)
    )


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Numba:
    """The Numba engine, for the same calls as `Native`."""

    def __init__(self, model: GPTModel, n_threads: int) -> None:
        self.model, self.engine = model, CpuEngine(model, n_threads)
        self.engine.warm_up()
        self.engine.build_quick_head()
        self.engine.prepare_prefill()

    def prefill(self, n: int) -> KVCache:
        cache = KVCache.of(self.model, 1, 1024)
        if self.engine.can_prefill:
            self.engine.prefill([7] * n, cache)
        else:
            with torch.inference_mode():
                self.model.out_head(self.model.hidden(torch.tensor([[7] * n]), cache, last_only=True))
        return cache

    def step(self, cache: Any, ids: list[int], *, argmax_only: bool) -> None:
        self.engine.logits(ids, cache, largest_only=argmax_only)


class Native:
    """The native engine."""

    def __init__(self, model: GPTModel, n_threads: int) -> None:
        self.engine = NativeEngine(model.config, arrays_of(model), n_threads)  # type: ignore[arg-type]
        self.engine.build_int8_head()

    def prefill(self, n: int) -> Any:
        cache = self.engine.new_cache(1, 1024)
        self.engine.forward([7] * n, cache, n_logits=1)
        return cache

    def step(self, cache: Any, ids: list[int], *, argmax_only: bool) -> None:
        self.engine.forward(ids, cache, n_logits=len(ids), argmax_only=argmax_only)


def measure(dtype: str, rounds: int, n_threads: int) -> dict[str, dict[str, float]]:
    """Return what each engine reaches, by the name of the measurement."""
    model = model_in(dtype)
    engines: dict[str, Any] = {"numba": Numba(model, n_threads), "native": Native(model, n_threads)}
    results: dict[str, dict[str, float]] = {}

    def steps(engine: Any, cache: Any, context: int, n_tokens: int, argmax_only: bool) -> float:
        def run() -> None:
            cache.truncate(context)
            engine.step(cache, [7] * n_tokens, argmax_only=argmax_only)

        return seconds(run, STEPS)

    def compare(name: str, run: Callable[[Any], float]) -> None:
        results[name] = interleaved({k: lambda e=e: run(e) for k, e in engines.items()}, rounds)  # type: ignore[misc]

    caches = {(name, n): engine.prefill(n) for name, engine in engines.items() for n in (16, 512)}
    names = {engine: name for name, engine in engines.items()}
    for context in (16, 512):
        for argmax_only in (False, True):
            compare(
                f"decode after {context}{', argmax only' if argmax_only else ''}",
                lambda e, n=context, only=argmax_only: steps(e, caches[names[e], n], n, 1, only),  # type: ignore[misc]
            )
    for n_tokens in (2, 4, 8, 16):
        compare(
            f"{n_tokens} tokens at once", lambda e, n=n_tokens: steps(e, caches[names[e], 16], 16, n, True)
        )  # type: ignore[misc]
    compare("prefill of 512", lambda e: seconds(lambda: e.prefill(512), 1))
    read = weight_bytes(arrays_of(model))
    for name, values in results.items():
        line = f"{dtype:9s}{name:32s}" + "".join(f"{k} {v * 1e3:7.2f} ms  " for k, v in values.items())
        line += f"ratio {values['numba'] / values['native']:.2f}"
        if name.startswith("decode"):
            line += f"  native {1 / values['native']:.1f} tokens/s"
            line += "" if "argmax" in name else f", {read / values['native'] / 1e9:.1f} GB/s"
        print(line, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"variant {active_variant()}, {options.threads} threads")
    print(json.dumps({dtype: measure(dtype, options.rounds, options.threads) for dtype in options.dtypes}))


if __name__ == "__main__":
    main()
