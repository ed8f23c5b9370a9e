"""Greedy decoding against transformers, CTranslate2 and llama.cpp: python -m tests.benchmarks.peers

    pip install ctranslate2 llama-cpp-python gguf
    python -m tests.benchmarks.peers [--checkpoint DIR] [--prompts 16 512] [--new 64] [--rounds 5]

All run on one checkpoint (random GPT-2 small unless one is given), each in a process of its own, stopped
while it is not its turn: threads that spin would slow each other. A round measures 1 and 1 + NEW tokens;
the decode rate is NEW over the difference. Medians of the rounds after the first one, of ratios too: each is
taken within a round, since memory changes its speed in minutes. Peak memory is that above the imports. The
last line is JSON.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gptcli.system.device import read_bandwidth
from tests.benchmarks.processes import THREADS, whole_processes

CONTENDERS = {
    "gptcli float32": "model",
    "gptcli float32, lookup": "model",
    "gptcli bfloat16": "model",
    "gptcli float16": "model",
    "gptcli int8": "model",
    "transformers float32": "model",
    "CTranslate2 float32": "ct2-float32",
    "CTranslate2 int8": "ct2-int8",
    "llama.cpp F32": "F32.gguf",
    "llama.cpp F16": "F16.gguf",
    "llama.cpp BF16": "BF16.gguf",
    "llama.cpp Q8_0": "Q8_0.gguf",
}
Run = Callable[[list[int], int], list[int]]


def prompt_of(n: int, vocabulary: int = 50257) -> list[int]:
    return torch.randint(vocabulary - 1, (n,), generator=torch.Generator().manual_seed(n)).tolist()


def gptcli_runner(name: str, path: Path) -> Run:
    from gptcli.runtime import load
    from gptcli.weights.source import select_source
    from tests.decoding import decode_ids

    kind = name.split()[1].rstrip(",")
    dtype = "float32" if kind == "int8" else kind
    ready = load(select_source(path), device="cpu", engine="native", dtype=dtype, quantize=kind == "int8")

    def run(prompt: list[int], n: int) -> list[int]:
        speculator = ready.speculator("lookup" if name.endswith("lookup") else "off")
        return decode_ids(None, prompt, n, engine=ready.engine, speculator=speculator)

    return run


def transformers_runner(_name: str, path: Path) -> Run:
    model = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(prompt: list[int], n: int) -> list[int]:
        idx = torch.tensor([prompt])
        mask = torch.ones_like(idx)
        options = {"do_sample": False, "min_new_tokens": n, "max_new_tokens": n, "pad_token_id": 50256}
        return model.generate(idx, attention_mask=mask, **options)[0, len(prompt) :].tolist()

    return run


def ctranslate2_runner(_name: str, path: Path) -> Run:
    import ctranslate2

    generator = ctranslate2.Generator(str(path), intra_threads=THREADS, compute_type="default")

    def run(prompt: list[int], n: int) -> list[int]:
        tokens = [[str(token) for token in prompt]]
        options = {"max_length": n, "min_length": n, "include_prompt_in_result": False, "beam_size": 1}
        return generator.generate_batch(tokens, end_token=[], **options)[0].sequences_ids[0]

    return run


def llama_runner(_name: str, path: Path) -> Run:
    import llama_cpp

    model = llama_cpp.Llama(
        str(path), n_ctx=1024, n_threads=THREADS, n_threads_batch=THREADS, verbose=False, logits_all=False
    )

    def run(prompt: list[int], n: int) -> list[int]:
        model.reset()
        model.eval(prompt)
        ids: list[int] = []
        while True:
            logits = model._ctx.get_logits_ith(-1)
            ids.append(int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax()))
            if len(ids) == n:
                return ids
            model.eval(ids[-1:])

    return run


def work(name: str, path: Path) -> None:
    """Run a contender: answer each line `prompt new` with seconds and a few ids."""
    torch.set_num_threads(THREADS)
    before = peak_bytes(os.getpid())
    makers = {"gptcli": gptcli_runner, "transformers": transformers_runner}
    makers |= {"CTranslate2": ctranslate2_runner, "llama.cpp": llama_runner}
    run = makers[name.split()[0]](name, path)
    print(f"ready {before}", flush=True)
    for line in sys.stdin:
        n_prompt, n_new = map(int, line.split())
        prompt = prompt_of(n_prompt)
        start = time.perf_counter()
        ids = run(prompt, n_new)
        print(json.dumps({"seconds": time.perf_counter() - start, "ids": ids}), flush=True)


class Contender:
    """A worker process that runs only while it is measured."""

    def __init__(self, name: str, path: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.peers",
            "--worker",
            name,
            "--checkpoint",
            str(path),
        ]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        said, _, self.bytes_before = self.child.stdout.readline().partition(" ")
        if said != "ready":
            raise RuntimeError(f"{name} does not start")
        self.child.send_signal(signal.SIGSTOP)

    def ask(self, n_prompt: int, n_new: int) -> dict:
        self.child.send_signal(signal.SIGCONT)
        self.child.stdin.write(f"{n_prompt} {n_new}\n")
        self.child.stdin.flush()
        answer = json.loads(self.child.stdout.readline())
        self.child.send_signal(signal.SIGSTOP)
        return answer

    def bytes_above_imports(self) -> int:
        return peak_bytes(self.child.pid) - int(self.bytes_before)


def peak_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def convert(checkpoint: Path, folder: Path) -> None:
    from tests.benchmarks.converted import to_ctranslate2, to_gguf

    (folder / "model").symlink_to(checkpoint.resolve())
    for kind in ("F32", "F16", "BF16", "Q8_0"):
        to_gguf(checkpoint, folder / f"{kind}.gguf", kind)
    for kind in ("float32", "int8"):
        to_ctranslate2(checkpoint, folder / f"ct2-{kind}", kind)


def measure(contenders: dict[str, Contender], n_prompt: int, n_new: int, rounds: int) -> dict:
    """Return tokens/s and prefill milliseconds of each contender in each round, bandwidth, and equal ids."""
    rates = {name: [] for name in contenders}
    prefills = {name: [] for name in contenders}
    ids, bandwidth = {}, []
    for number in range(rounds + 1):
        gigabytes = read_bandwidth() / 1e9
        if number:
            bandwidth.append(gigabytes)
        for name, contender in contenders.items():
            first, whole = contender.ask(n_prompt, 1), contender.ask(n_prompt, 1 + n_new)
            ids[name] = whole["ids"]
            if number:
                rates[name].append(n_new / (whole["seconds"] - first["seconds"]))
                prefills[name].append(first["seconds"] * 1e3)
    return {
        "prompt": n_prompt,
        "new": n_new,
        "read_gigabytes_per_second": bandwidth,
        "tokens_per_second": rates,
        "prefill_milliseconds": prefills,
        "ids_as_transformers": {name: seen == ids["transformers float32"] for name, seen in ids.items()},
    }


def show(found: dict, weight_gigabytes: float) -> None:
    bandwidth = found["read_gigabytes_per_second"]
    spoken = f"{statistics.median(bandwidth):.1f} GB/s ({min(bandwidth):.0f} to {max(bandwidth):.0f})"
    print(f"\nprompt of {found['prompt']}, {found['new']} new tokens; memory reads {spoken}")
    print(
        f"{'':24}{'tokens/s':>10}{'GB/s':>8}{'of limit':>10}{'prefill ms':>12}{'peak MB':>10}{'same ids':>10}"
    )
    for name, rates in found["tokens_per_second"].items():
        part = {"16": 0.5, "t8": 0.25, "_0": 0.25}.get(name[-2:], 1.0)
        gigabytes = [rate * weight_gigabytes * part for rate in rates]
        share = median_ratio(gigabytes, bandwidth)
        same = "yes" if found["ids_as_transformers"][name] else "no"
        prefill = statistics.median(found["prefill_milliseconds"][name])
        rate, peak = statistics.median(rates), found["peak_bytes_above_imports"][name] / 1e6
        print(
            f"{name:24}{rate:10.1f}{statistics.median(gigabytes):8.1f}{share:10.2f}{prefill:12.1f}"
            f"{peak:10.0f}{same:>10}"
        )
    for what, ratio, peer in comparisons(found):
        print(f"{what}: {ratio:.2f} of {peer}")


# The comparisons: the figure, ours, and the others, of which the best counts.
DECODING = (
    ("float32", "gptcli float32", ("CTranslate2 float32", "llama.cpp F32")),
    ("lookup", "gptcli float32, lookup", ("gptcli float32",)),
    ("bfloat16", "gptcli bfloat16", ("llama.cpp F16", "llama.cpp BF16")),
    ("float16", "gptcli float16", ("llama.cpp F16", "llama.cpp BF16")),
    ("int8", "gptcli int8", ("llama.cpp Q8_0",)),
    ("int8", "gptcli int8", ("CTranslate2 int8",)),
    ("transformers", "gptcli float32", ("transformers float32",)),
)
PREFILL = (
    ("prefill", "gptcli float32", ("CTranslate2 float32", "llama.cpp F32", "transformers float32")),
    ("prefill int8", "gptcli int8", ("CTranslate2 int8", "llama.cpp Q8_0")),
)


def comparisons(found: dict) -> list[tuple[str, float, str]]:
    """Return, for each figure, our speed as a multiple of the best of the others, and its name.

    A ratio is taken within a round, and of the rounds the median: memory changes its speed in minutes.
    """
    rates = found["tokens_per_second"]
    speeds = {name: [1 / each for each in seen] for name, seen in found["prefill_milliseconds"].items()}
    wanted = [(what, rates, ours, others) for what, ours, others in DECODING]
    wanted += [(what, speeds, ours, others) for what, ours, others in PREFILL]
    rows = []
    for what, seen, ours, others in wanted:
        there = [peer for peer in others if peer in seen and ours in seen]
        if ratios := [(median_ratio(seen[ours], seen[peer]), peer) for peer in there]:
            rows.append((what, *min(ratios)))
    return rows


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--prompts", type=int, nargs="+", default=[16, 512])
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="only contenders with this in their name, and transformers")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.checkpoint)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = options.checkpoint
        if checkpoint is None:
            torch.manual_seed(0)
            checkpoint = folder / "random"
            GPT2LMHeadModel(GPT2Config()).save_pretrained(checkpoint)
        convert(checkpoint, folder)
        contenders = {}
        for contender, path in CONTENDERS.items():
            if options.only is None or options.only in contender or contender == "transformers float32":
                contenders[contender] = Contender(contender, folder / path)
        weight_gigabytes = (checkpoint / "model.safetensors").stat().st_size / 1e9
        found = []
        for n in options.prompts:
            found.append(measure(contenders, n, options.new, options.rounds))
            peaks = {name: contender.bytes_above_imports() for name, contender in contenders.items()}
            found[-1]["peak_bytes_above_imports"] = peaks
        seconds = whole_processes(checkpoint, folder, options.rounds)
        for part in found:
            show(part, weight_gigabytes)
        print("\nwhole process, s: " + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items()))
        figures = {"threads": THREADS, "measured": found, "seconds": seconds}
        figures["ratios"] = [comparisons(part) for part in found]
        print(json.dumps(figures))
        for contender in contenders.values():
            contender.child.kill()


if __name__ == "__main__":
    main()
