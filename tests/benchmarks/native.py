"""The native engine next to PyTorch: python -m tests.benchmarks.native [--rounds N] [PRESET ...]

Tokens/s and GB/s after 16 and 512 tokens, a prompt of 512, what several tokens at once cost, and what drafts
of the int8 copy gain. Random weights; both engines take turns in every round; medians. The last line is JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from gptcli.config.presets import resolve_options
from gptcli.decode.engine import ForwardRequest
from gptcli.model.init import random_model
from gptcli.runtime import LoadedModel, load
from gptcli.weights.source import select_source
from tests.benchmarks.timing import interleaved
from tests.decoding import decode_tokens
from tests.models import save_huggingface

KINDS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "int8": {"quantize": True},
}
STEPS = 12


def step_seconds(model: LoadedModel, context: int, n_tokens: int = 1) -> float:
    """Return the seconds of a greedy step of `n_tokens` after `context` others."""
    ids = torch.randint(model.config.vocab_size, (context + n_tokens,)).tolist()
    cache = model.engine.new_cache(1, context + n_tokens)
    model.engine.forward(ForwardRequest([ids[:context]], cache))
    seconds = []
    for _ in range(STEPS):
        cache.truncate(context)
        request = ForwardRequest([ids[context:]], cache, 0, n_tokens, "argmax", tokens_left=100)
        start = time.perf_counter()
        model.engine.forward(request)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def prefill_seconds(model: LoadedModel) -> float:
    """Return the seconds of a prompt of 512 tokens."""
    ids = torch.randint(model.config.vocab_size, (512,)).tolist()
    request = ForwardRequest([ids], model.engine.new_cache(1, 513), exactness="argmax")
    start = time.perf_counter()
    model.engine.forward(request)
    return time.perf_counter() - start


def drafted(model: LoadedModel, speculation: str) -> float:
    """Return the tokens/s of 100 tokens after a random prompt, with or without drafts of the int8 copy."""
    prompt = torch.randint(
        model.config.vocab_size, (16,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    times = []
    tokens = decode_tokens(
        None,
        prompt,
        100,
        engine=model.engine,
        speculator=model.speculator(speculation),  # type: ignore[arg-type]
    )
    for _ in tokens:
        times.append(time.perf_counter())
    return (len(times) - 1) / (times[-1] - times[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=["gpt2-small"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, object] = {}
    for preset in options.presets:
        with tempfile.TemporaryDirectory() as folder:
            config = resolve_options(preset, None, []).config
            source = select_source(save_huggingface(random_model(config, 0), Path(folder)))
            for kind, changes in KINDS.items():
                engines = {
                    name: load(source, device="cpu", engine=name, **changes) for name in ("native", "torch")
                }
                runs = {}
                for name, model in engines.items():
                    runs[f"{name}, step after 16"] = lambda m=model: step_seconds(m, 16)
                    runs[f"{name}, step after 512"] = lambda m=model: step_seconds(m, 512)
                    runs[f"{name}, prompt of 512"] = lambda m=model: prefill_seconds(m)
                seconds = interleaved(runs, options.rounds)
                for name, value in seconds.items():
                    gigabytes = engines[name.split(",")[0]].bytes_per_step / value / 1e9
                    rate = f"{1 / value:8.1f} tokens/s {gigabytes:6.1f} GB/s" if "step" in name else ""
                    print(f"{preset} {kind:9} {name:24} {value * 1e3:8.1f} ms {rate}", flush=True)
                found[f"{preset} {kind}"] = seconds
                one = seconds["native, step after 16"]
                costs = {n: step_seconds(engines["native"], 16, n) / one for n in (2, 4, 8, 16)}
                print(f"{preset} {kind:9} tokens at once, in steps of one: {costs}")
                if kind == "float32":
                    runs = {h: lambda h=h, m=engines["native"]: drafted(m, h) for h in ("off", "self")}
                    rates = interleaved(runs, options.rounds)
                    gain = rates["self"] / rates["off"]
                    print(f"{preset} {kind:9} drafts of the int8 copy: {gain:.2f} of plain")
                    found[f"{preset} int8 drafts"] = rates
    print(json.dumps(found))


if __name__ == "__main__":
    main()
