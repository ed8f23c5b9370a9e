"""Batches against transformers and CTranslate2: python -m tests.benchmarks.batch_peers [--sizes 16 64]

    pip install ctranslate2
    python -m tests.benchmarks.batch_peers [--checkpoint DIR] [--sizes 16 64] [--new 64] [--rounds 3]

Prompts of 16 random tokens, all of one batch at once, float32 and int8, on random GPT-2 small unless a
checkpoint is given. Each program has a process of its own, stopped while it is not its turn. Rates count
generated tokens over the whole call; medians of the rounds after the first one. The last line is JSON.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.decode.batch import BatchDecoder, SequenceState
from gptcli.runtime import load
from gptcli.weights.source import select_source
from tests.benchmarks.converted import to_ctranslate2
from tests.benchmarks.peers import prompt_of
from tests.benchmarks.processes import THREADS

CONTENDERS = {
    "gptcli float32": "model",
    "gptcli int8": "model",
    "transformers float32": "model",
    "CTranslate2 float32": "ct2-float32",
    "CTranslate2 int8": "ct2-int8",
}
Run = Callable[[list[list[int]], int], list[list[int]]]


def gptcli_runner(name: str, path: Path) -> Run:
    model = load(select_source(path), device="cpu", engine="native", quantize=name.endswith("int8"))

    def run(prompts: list[list[int]], n: int) -> list[list[int]]:
        sequences = [SequenceState(list(prompt), n) for prompt in prompts]
        waiting = list(sequences)
        decoder = BatchDecoder(model.engine, len(prompts))
        for _ in decoder.decode(lambda free: [waiting.pop(0) for _i in waiting[:free]]):
            pass
        return [s.ids[len(prompt) :] for s, prompt in zip(sequences, prompts, strict=True)]

    return run


def transformers_runner(_name: str, path: Path) -> Run:
    model = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(prompts: list[list[int]], n: int) -> list[list[int]]:
        idx = torch.tensor(prompts)
        options = {"do_sample": False, "min_new_tokens": n, "max_new_tokens": n, "pad_token_id": 50256}
        return model.generate(idx, attention_mask=torch.ones_like(idx), **options)[:, idx.shape[1] :].tolist()

    return run


def ctranslate2_runner(_name: str, path: Path) -> Run:
    import ctranslate2

    generator = ctranslate2.Generator(str(path), intra_threads=THREADS, compute_type="default")

    def run(prompts: list[list[int]], n: int) -> list[list[int]]:
        tokens = [[str(token) for token in prompt] for prompt in prompts]
        options = {"max_length": n, "min_length": n, "include_prompt_in_result": False, "beam_size": 1}
        results = generator.generate_batch(tokens, end_token=[], **options)
        return [result.sequences_ids[0] for result in results]

    return run


def work(name: str, path: Path) -> None:
    """Run a contender: answer each line `size new` with seconds and ids."""
    torch.set_num_threads(THREADS)
    makers = {"gptcli": gptcli_runner, "transformers": transformers_runner, "CTranslate2": ctranslate2_runner}
    run = makers[name.split()[0]](name, path)
    print("ready", flush=True)
    for line in sys.stdin:
        size, n_new = map(int, line.split())
        whole = prompt_of(16 * size)
        prompts = [whole[16 * i : 16 * (i + 1)] for i in range(size)]
        start = time.perf_counter()
        ids = run(prompts, n_new)
        print(json.dumps({"seconds": time.perf_counter() - start, "ids": ids}), flush=True)


class Contender:
    """A worker process that runs only while it is measured."""

    def __init__(self, name: str, path: Path) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.batch_peers", "--worker", name]
        self.child = subprocess.Popen(
            [*command, "--checkpoint", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.child.stdout.readline() == "ready\n", f"{name} does not start"
        self.child.send_signal(signal.SIGSTOP)

    def ask(self, size: int, n_new: int) -> dict:
        self.child.send_signal(signal.SIGCONT)
        self.child.stdin.write(f"{size} {n_new}\n")
        self.child.stdin.flush()
        answer = json.loads(self.child.stdout.readline())
        self.child.send_signal(signal.SIGSTOP)
        return answer


def measure(contenders: dict[str, Contender], size: int, n_new: int, rounds: int) -> dict[str, float]:
    """Print and return the tokens per second of each contender."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    ids = {}
    for number in range(rounds + 1):
        for name, contender in contenders.items():
            answer = contender.ask(size, n_new)
            ids[name] = answer["ids"]
            if number:
                rates[name].append(size * n_new / answer["seconds"])
    print(f"\nbatch of {size}, {n_new} new tokens each: tokens/s, texts equal to transformers'")
    for name, seen in rates.items():
        equal = sum(a == b for a, b in zip(ids[name], ids["transformers float32"], strict=True))
        print(f"  {name:24}{statistics.median(seen):10.1f}{equal:6} of {size}")
    peers = ("transformers float32", "CTranslate2 float32")
    ratio = min(
        statistics.median(a / b for a, b in zip(rates["gptcli float32"], rates[peer], strict=True))
        for peer in peers
    )
    print(f"  gptcli float32: {ratio:.2f} of the better")
    return {name: statistics.median(seen) for name, seen in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.checkpoint)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, checkpoint = Path(name), options.checkpoint
        if checkpoint is None:
            torch.manual_seed(0)
            checkpoint = folder / "random"
            GPT2LMHeadModel(GPT2Config()).save_pretrained(checkpoint)
        (folder / "model").symlink_to(checkpoint.resolve())
        for kind in ("float32", "int8"):
            to_ctranslate2(checkpoint, folder / f"ct2-{kind}", kind)
        contenders = {
            contender: Contender(contender, folder / path) for contender, path in CONTENDERS.items()
        }
        rates = {size: measure(contenders, size, options.new, options.rounds) for size in options.sizes}
        print(json.dumps({"threads": THREADS, "tokens_per_second": rates}))
        for contender in contenders.values():
            contender.child.kill()


if __name__ == "__main__":
    main()
