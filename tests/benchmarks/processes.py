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
    """Return the seconds of whole processes, to import torch and to generate in float32, kernels compiled."""
    generate = [sys.executable, "-m", "gptcli", "generate", "Hello, I am", "-q", "-w", str(checkpoint), "-n"]
    paths = {
        "transformers": checkpoint,
        "CTranslate2": folder / "ct2-float32",
        "llama.cpp": folder / "F32.gguf",
    }
    commands = {
        "import torch": [sys.executable, "-c", "import torch, os; os._exit(0)"],
        **{f"gptcli, {n} tokens": [*generate, str(n)] for n in (6, 32, 128)},
        **{f"{name}, {n} tokens": alone(name, paths[name], n) for name in ALONE for n in (6, 32, 128)},
    }

    def seconds(command: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    return interleaved({name: partial(seconds, command) for name, command in commands.items()}, rounds)
