"""Greedy decoding of GPT-2 small, float32, beside `transformers`: python -m tests.benchmarks.decode

Random weights from one file that both read; a 16-token prompt, 64 new tokens, interleaved rounds.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.decode.greedy import decode_greedy
from gptcli.runtime import make_ready
from gptcli.weights.plan import plan_load
from tests.benchmarks.timing import interleaved, read_gigabytes_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--new", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    prompt = torch.randint(50257, (options.prompt,)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
        reference = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        ready = make_ready(plan_load(Path(folder), []), device="cpu", dtype="float32", seed=0, cache_tokens=0)

        def ours(use_cache: bool) -> float:
            start = time.perf_counter()
            for _ in decode_greedy(ready.model, prompt, options.new, use_cache=use_cache):
                pass
            return options.new / (time.perf_counter() - start)

        @torch.inference_mode()
        def theirs() -> float:
            idx = torch.tensor([prompt])
            start = time.perf_counter()
            reference.generate(
                idx,
                attention_mask=torch.ones_like(idx),
                do_sample=False,
                min_new_tokens=options.new,
                max_new_tokens=options.new,
                pad_token_id=50256,
            )
            return options.new / (time.perf_counter() - start)

        rates = interleaved(
            {
                "gptcli, cache": lambda: ours(True),
                "gptcli, no cache": lambda: ours(False),
                "transformers": theirs,
                "read bandwidth, GB/s": read_gigabytes_per_second,
            },
            options.rounds,
        )
    bandwidth = rates.pop("read bandwidth, GB/s")
    gigabytes = ready.bytes_per_step / 1e9
    print(f"read bandwidth {bandwidth:.1f} GB/s, so at most {bandwidth / gigabytes:.1f} tokens/s")
    print(f"{'':20}{'tokens/s':>10}{'GB/s':>8}{'ratio':>8}")
    for name, rate in rates.items():
        print(f"{name:20}{rate:10.1f}{rate * gigabytes:8.1f}{rate / rates['transformers']:8.2f}")
    print(json.dumps({"tokens_per_second": rates, "read_gigabytes_per_second": bandwidth, **vars(options)}))


if __name__ == "__main__":
    main()
