"""One training step of GPT-2 small, batch 4 × 256, and transformers': python -m tests.benchmarks.training

The same weights and ids, float32, no dropout: losses and gradients must agree, the times are a ratio.
"""

import json
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.runtime import load
from gptcli.weights.layouts import HUGGINGFACE
from gptcli.weights.plan import plan_load
from gptcli.weights.save import lay_out
from tests.benchmarks.timing import interleaved


def main() -> None:
    torch.manual_seed(0)
    ids = torch.randint(50257, (4, 256))
    with tempfile.TemporaryDirectory() as folder:
        GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
        theirs = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        ready = load(plan_load(Path(folder), []), device="cpu", dtype="float32", seed=0, cache_tokens=0)
    ours = ready.model.requires_grad_(True)
    losses: dict[str, float] = {}

    def step_ours() -> float:
        ours.zero_grad()
        start = time.perf_counter()
        loss = F.cross_entropy(ours(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        losses["gptcli"] = loss.item()
        return time.perf_counter() - start

    def step_theirs() -> float:
        theirs.zero_grad()
        start = time.perf_counter()
        loss = theirs(ids, labels=ids).loss
        loss.backward()
        losses["transformers"] = loss.item()
        return time.perf_counter() - start

    seconds = interleaved({"gptcli": step_ours, "transformers": step_theirs}, rounds=5)
    gradients = lay_out({name: p.grad for name, p in ours.named_parameters()}, HUGGINGFACE, ready.config)
    largest = max(
        float((gradients[name] - p.grad).abs().max() / p.grad.abs().max())
        for name, p in theirs.transformer.named_parameters()
    )
    for name, value in seconds.items():
        print(f"{name:14}{value:8.3f} s{seconds['transformers'] / value:8.2f}  loss {losses[name]:.6f}")
    print(f"largest difference of a gradient, relative to its tensor's largest: {largest:.1e}")
    print(json.dumps({"seconds": seconds, "losses": losses, "gradient_difference": largest}))


if __name__ == "__main__":
    main()
