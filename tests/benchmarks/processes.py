"""Whole processes that generate, ours and the peers', as a shell waits for them."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.benchmarks.timing import interleaved

THREADS = os.cpu_count() or 1
# Each imports only what it needs, and ends as soon as it has the ids.
ALONE = {
    "transformers": """
import torch
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained(path, dtype=torch.float32).eval()
idx = torch.tensor([prompt])
model.generate(idx, attention_mask=torch.ones_like(idx), do_sample=False, min_new_tokens=n, max_new_tokens=n,
    pad_token_id=50256)
""",
    "CTranslate2": """
import ctranslate2
generator = ctranslate2.Generator(path, intra_threads=threads, compute_type="default")
generator.generate_batch([[str(token) for token in prompt]], end_token=[], max_length=n, min_length=n,
    include_prompt_in_result=False, beam_size=1)
""",
    "llama.cpp": """
import llama_cpp, numpy
model = llama_cpp.Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
model.eval(prompt)
for _ in range(n - 1):
    logits = numpy.ctypeslib.as_array(model._ctx.get_logits_ith(-1), (model.n_vocab(),))
    model.eval([int(logits.argmax())])
""",
}


def alone(name: str, path: Path, n: int) -> list[str]:
    """Return the command that generates n tokens with a peer and does nothing else."""
    given = f"path, prompt, n, threads = {str(path)!r}, [15496, 11, 314, 716], {n}, {THREADS}"
    return [sys.executable, "-c", f"{given}\n{ALONE[name]}\nimport os; os._exit(0)"]


def whole_processes(checkpoint: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Return the seconds of whole processes: to import torch, and to generate in float32."""
    generate = [sys.executable, "-m", "gptcli", "generate", "Hello, I am", "-q", "-w", str(checkpoint), "-n"]
    paths = {
        "transformers": checkpoint,
        "CTranslate2": folder / "ct2-float32",
        "llama.cpp": folder / "F32.gguf",
    }
    stories = [sys.executable, "-m", "gptcli", "generate", "Once upon a time", "-q", "-n", "50"]
    commands = {
        "import torch": [sys.executable, "-c", "import torch, os; os._exit(0)"],
        "gptcli, stories, 50 tokens": stories,
        **{f"gptcli, {n} tokens": [*generate, str(n)] for n in (6, 32, 128)},
        **{f"{name}, {n} tokens": alone(name, paths[name], n) for name in ALONE for n in (6, 32, 128)},
    }
    runs = {name: partial(seconds_of, command) for name, command in commands.items()}
    found = interleaved(runs, rounds)
    found |= {f"{name}, one core busy": s for name, s in with_a_busy_core(checkpoint, folder, rounds).items()}
    four = {
        "gptcli, four one after another": lambda: sum(seconds_of(stories) for _ in range(4)),
        "gptcli, four at once": lambda: seconds_of(*[stories] * 4),
    }
    return found | interleaved(four, rounds)


def with_a_busy_core(checkpoint: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Return the seconds of whole processes of 96 tokens while another program keeps one core busy.

    `one thread` is the same on one core without the other program: what there is to reach.
    """
    generate = [sys.executable, "-m", "gptcli", "generate", "Hello, I am", "-q", "-w", str(checkpoint)]
    ours = [*generate, "-n", "96", "--speculate", "off"]
    runs = {
        "gptcli": ours,
        "llama.cpp": alone("llama.cpp", folder / "F32.gguf", 96),
        "CTranslate2": alone("CTranslate2", folder / "ct2-float32", 96),
    }
    found = {"gptcli, one thread without it": seconds_of([*ours, "--threads", "1"])}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return found | interleaved({name: partial(seconds_of, run) for name, run in runs.items()}, rounds)
    finally:
        busy.kill()


def seconds_of(*commands: list[str]) -> float:
    """Return the seconds until all of these commands, begun together, have ended."""
    start = time.perf_counter()
    children = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    assert sum(child.wait() for child in children) == 0
    return time.perf_counter() - start
