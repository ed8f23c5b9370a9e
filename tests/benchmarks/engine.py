"""The engine by itself: python -m tests.benchmarks.engine [PRESET ...]

The time to prepare it with compiled kernels; tokens/s and prompts compared with PyTorch; the cost of
verifying several tokens at once; how the rate falls with size and context, in float32 and int8. The weights
are random.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from gptcli.decode.engine import Engine, ForwardRequest
from gptcli.runtime import LoadedModel, load
from gptcli.system.device import read_bandwidth
from gptcli.weights.source import select_source
from tests.benchmarks.timing import interleaved
from tests.decoding import decode_tokens

PREPARE = """
import time
from gptcli.runtime import load
from gptcli.weights.source import select_source
model = load(select_source(preset="gpt2-small"), device="cpu", seed=0)
start = time.perf_counter()
model.engine.prepare()
while not model.engine.max_tokens:
    time.sleep(0.001)
print(time.perf_counter() - start)
"""


def median_seconds(run: Callable[[], object], rounds: int = 9) -> float:
    seconds = []
    for number in range(rounds + 2):
        start = time.perf_counter()
        run()
        if number >= 2:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def step_seconds(model: LoadedModel, context: int, n_tokens: int = 1, *, engine: bool = True) -> float:
    """Time one greedy step of `n_tokens` after `context` of them, by the kernels or by PyTorch."""
    ids = torch.randint(model.config.vocab_size, (context + n_tokens,)).tolist()
    by: Engine = model.engine if engine else model.engine.plain
    cache = by.new_cache(1, context + n_tokens)
    model.engine.plain.forward(ForwardRequest([ids[:context]], cache))

    def run() -> None:
        cache.truncate(context)
        by.forward(ForwardRequest([ids[context:]], cache, 0, n_tokens, "argmax"))

    return median_seconds(run)


def prefill_seconds(model: LoadedModel, n_tokens: int) -> dict[str, float]:
    """Time a prompt of `n_tokens` by PyTorch, and by the kernels, which are prepared."""
    ids = torch.randint(model.config.vocab_size, (n_tokens,)).tolist()
    kernels = model.engine.engine
    if not kernels.can_prefill:
        kernels.prepare_prefill()

    def request() -> ForwardRequest:
        return ForwardRequest([ids], model.engine.new_cache(1, n_tokens + 1), exactness="argmax")

    with torch.inference_mode():
        ways = {
            "PyTorch": lambda: model.engine.plain.forward(request()),
            "kernels": lambda: kernels.prefill(
                ids, model.engine.new_cache(1, n_tokens + 1), largest_only=True
            ),
        }
        return interleaved({name: partial(seconds_of, run) for name, run in ways.items()}, 9)


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def int8_drafts(model: LoadedModel) -> dict[str, float]:
    """Compare plain decoding and drafts of the int8 copy, in turns; time how long the copy takes to make."""
    start = time.perf_counter()
    model.engine.guesser.prepare(wait=True)
    copy_seconds = time.perf_counter() - start
    assert model.engine.guesser.is_ready
    draw = random.Random(0)
    prompt = [draw.randrange(model.config.vocab_size) for _ in range(16)]
    found: dict[str, list[float]] = {"off": [], "self": []}
    texts = set()
    for number in range(6):
        for how, rates in found.items():
            steps = decode_tokens(
                model.model, prompt, 100, engine=model.engine, speculator=model.speculator(how)
            )
            ids, came = [], []
            for step in steps:
                ids.append(step.token_id)
                came.append(time.perf_counter())
            texts.add(tuple(ids))
            if number:
                rates.append((len(came) - 1) / (came[-1] - came[0]))
    assert len(texts) == 1
    plain, drafted = (statistics.median(rates) for rates in found.values())
    return {"copy_seconds": copy_seconds, "plain": plain, "int8_drafts": drafted, "ratio": drafted / plain}


def main(presets: list[str]) -> None:
    command = [sys.executable, "-c", PREPARE]
    prepare = [float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(4)][1:]
    found: dict[str, object] = {"prepare_seconds": statistics.median(prepare)}
    print(f"prepared in {found['prepare_seconds']:.2f} s with nothing else running, kernels compiled before")
    for preset in presets:
        for quantize in (False, True):
            model = load(select_source(preset=preset), device="cpu", seed=0, quantize=quantize)
            model.engine.prepare(wait=True)
            limit = read_bandwidth() / model.bytes_per_step
            name = f"{preset} {'int8' if quantize else 'float32'}"
            rates = {n: 1 / step_seconds(model, n) for n in (16, 256, 1000)}
            found[name] = {"tokens_per_second_at_context": rates, "limit_tokens_per_second": limit}
            listed = ", ".join(f"{rate:.1f} at {n}" for n, rate in rates.items())
            print(f"{name:20} tokens/s by context: {listed}; memory allows {limit:.1f}", flush=True)
            if preset == presets[0]:
                one = 1 / rates[16]
                costs = {n: step_seconds(model, 16, n) / one for n in (2, 3, 4, 5, 6, 8)}
                plain = step_seconds(model, 16, engine=False)
                found[name] |= {"cost_of_tokens": costs, "pytorch_step_seconds": plain}
                listed = ", ".join(f"{n}: {cost:.2f}" for n, cost in costs.items())
                prefill = {n: prefill_seconds(model, n) for n in (16, 64, 512, 1000)}
                found[name]["prefill_seconds"] = prefill
                for way in ("PyTorch", "kernels"):
                    milliseconds = ", ".join(f"{n}: {by[way] * 1e3:.0f}" for n, by in prefill.items())
                    print(f"{'':20} prompts by {way}, ms: {milliseconds}")
                print(f"{'':20} several at once, in steps of one: {listed}; PyTorch {1 / plain:.1f} tokens/s")
            if not quantize:
                found[f"{preset} int8 drafts"] = own = int8_drafts(model)
                print(
                    f"{'':20} with drafts of its int8 copy, made in {own['copy_seconds']:.2f} s:"
                    f" {own['int8_drafts']:.1f} tokens/s to {own['plain']:.1f}, {own['ratio']:.2f}"
                )
            del model
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:] or ["gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl"])
