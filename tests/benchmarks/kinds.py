"""Gated and mixture models against the dense one, by bytes of a step: python -m tests.benchmarks.kinds

Random weights of GPT-2 small's width, native engine, float32 and int8, interleaved. `of dense` is the rate
of a byte: GB/s of the kind over the GB/s of the dense model in that round. The last line is JSON.
"""

import argparse
import json
import statistics
import time

from gptcli.decode.loop import decode
from gptcli.runtime import load
from gptcli.weights.source import select_source

PRESETS = ("gpt2-small", "gpt-124m-swiglu", "gpt-124m-moe")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=32)
    options = parser.parse_args()
    models = {
        f"{preset}, {dtype}": load(
            select_source(preset=preset), device="cpu", engine="native", quantize=dtype == "int8"
        )
        for preset in PRESETS
        for dtype in ("float32", "int8")
    }
    rates: dict[str, list[float]] = {name: [] for name in models}
    for number in range(options.rounds + 1):
        for name, model in models.items():
            tokens = decode(model.engine, range(16), options.new + 1)
            next(tokens)  # prefill
            start = time.perf_counter()
            for _ in tokens:
                pass
            if number:
                rates[name].append(options.new / (time.perf_counter() - start))
    print(f"{'':28}{'MB a step':>12}{'tokens/s':>10}{'GB/s':>8}{'of dense':>10}")
    for name, model in models.items():
        dense = f"{PRESETS[0]}, {name.split(', ')[1]}"
        n_bytes = model.bytes_per_step / models[dense].bytes_per_step
        share = statistics.median(a / b * n_bytes for a, b in zip(rates[name], rates[dense], strict=True))
        rate = statistics.median(rates[name])
        size = model.bytes_per_step
        print(f"{name:28}{size / 1e6:12.1f}{rate:10.1f}{rate * size / 1e9:8.1f}{share:10.2f}")
    print(json.dumps({"tokens_per_second": rates, **vars(options)}))


if __name__ == "__main__":
    main()
