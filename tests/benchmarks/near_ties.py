"""Near ties: errors of float32 logits, how often float64 decides, what that costs. Prints figures.

    python -m tests.benchmarks.near_ties [--weights DIR]

The error of a step is the largest difference of two logits' errors, in units of float32 rounding relative to
`scale_of` the logits; the tolerance of `gptcli/decode/near_ties.py` is a multiple of the largest one.
"""

import argparse
import time
from typing import Any

import numpy as np

from gptcli.api import load_model
from gptcli.decode.engine import ForwardRequest
from gptcli.decode.loop import decode
from gptcli.decode.near_ties import FLOAT32_TOLERANCE, scale_of
from gptcli.engine.native.engine import NativeEngine
from tests.engine.models import native_engine
from tests.models import lively_model, tiny_config

EPS = float(np.finfo(np.float32).eps)


def relative_errors(engine: NativeEngine, ids: list[int]) -> np.ndarray:
    """Return the error of every position of a text, in whole passes and token by token."""
    cache = engine._model.new_cache(1, len(ids), np.float64)
    exact = engine._model.forward([ids], cache, n_logits=[len(ids)])  # [T, V]
    scale, errors = scale_of(exact.min(axis=1), exact.max(axis=1)), []
    for pieces in ([len(ids)], [1] * len(ids)):
        held, first = engine.new_cache(1, len(ids)), 0
        for n in pieces:
            rows = slice(first, first + n)
            logits = engine.forward(ForwardRequest([ids[rows]], held, n_logits=[n]))
            errors.append(np.ptp(logits - exact[rows], axis=1) / scale[rows] / EPS)
            first += n
    return np.concatenate(errors)


def engines(weights: str | None) -> dict[str, NativeEngine]:
    """Return models of several shapes: trained, random, deep, wide, with a common offset of the logits."""
    found: dict[str, Any] = {"stories": load_model().engine}
    found["gpt2-small, random"] = load_model(weights, preset=None if weights else "gpt2-small").engine
    shapes = {
        "lively": {},
        "lively, 24 layers": {"n_layers": 24, "emb_dim": 96},
        "lively, wide": {"emb_dim": 1024, "n_heads": 8},
        "lively, swiglu": {"feed_forward": "swiglu", "emb_dim": 128},
    }
    for name, changes in shapes.items():
        config = tiny_config(**({"vocab_size": 3000, "context_length": 300} | changes))
        found[name] = native_engine(lively_model(config))
    for n in (1, 10, 100):  # an offset that all logits share, as of real GPT-2, from so many places
        model = lively_model(tiny_config(vocab_size=3000, context_length=300, emb_dim=768))
        model.final_norm.shift.data[:n] = -100 / n
        model.out_head.weight.data[:, :n] += 1
        found[f"logits about -100, {n}"] = native_engine(model)
    return found


def strikes(engine: NativeEngine, n_texts: int, n_tokens: int) -> tuple[int, float, float]:
    """Return how many steps float64 decided, and the seconds of decoding with and without."""
    counted, exact = 0, engine.exact_logits

    def counting(*arguments: Any) -> Any:
        nonlocal counted
        counted += 1
        return exact(*arguments)

    seconds = []
    for tolerance in (0.0, FLOAT32_TOLERANCE):
        engine.near_tie_tolerance, engine.exact_logits = tolerance, counting
        start = time.perf_counter()
        for text in range(n_texts):
            ids = [int(i) for i in np.random.default_rng(text).integers(0, engine.config.vocab_size, 8)]
            for _ in decode(engine, ids, n_tokens):
                pass
        seconds.append(time.perf_counter() - start)
    del engine.exact_logits
    return counted, seconds[1], seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", help="a GPT-2 small to measure, instead of a random one")
    parser.add_argument("--texts", type=int, default=10)
    arguments = parser.parse_args()
    print(f"tolerance {FLOAT32_TOLERANCE / EPS:.0f} units")
    for name, engine in engines(arguments.weights).items():
        T = min(300, engine.config.context_length)
        ids = [int(i) for i in np.random.default_rng(0).integers(0, engine.config.vocab_size, T)]
        errors = relative_errors(engine, ids)
        print(
            f"{name:22} error: largest {errors.max():.2f}, mean {errors.mean():.2f} units",
            end="; ",
            flush=True,
        )
        n_tokens = min(200, engine.config.context_length - 8)
        n, with_ties, without = strikes(engine, arguments.texts, n_tokens)
        per_thousand = n / (arguments.texts * n_tokens) * 1000
        print(f"{per_thousand:.2f} near ties per 1,000 tokens, time {with_ties / without:.3f} of none")
    engine = load_model(arguments.weights, preset=None if arguments.weights else "gpt2-small").engine
    for n_tokens in (100, 1000):
        times = []
        for seed in range(4):
            ids = [int(i) for i in np.random.default_rng(seed).integers(0, 50257, n_tokens)]
            start = time.perf_counter()
            engine.exact_logits(ids)
            times.append(time.perf_counter() - start)
        print(f"one near tie after {n_tokens} tokens: {sorted(times)[1]:.2f} s")


if __name__ == "__main__":
    main()
