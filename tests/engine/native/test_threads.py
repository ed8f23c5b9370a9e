"""The pool of threads: forks, threads of Python, many models, the end of the process, signals."""

import subprocess
import sys
import time

import numpy as np
import pytest

from gptcli.engine.native.model import NativeModel
from tests.engine.native.models import random_parameters, tiny_sizes


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.slow
def test_a_thousand_rounds_of_forks_threads_and_models() -> None:
    done = run("-m", "tests.engine.native.soak", "1000")
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


def test_the_engine_imports_no_torch() -> None:
    code = "import sys, gptcli.engine.native.model; print({'torch', 'numba'} & set(sys.modules))"
    assert run("-c", code).stdout.strip() == "set()"


def deep_engine(C: int, n_layers: int) -> NativeModel:
    """Return an engine for a slow model: all its layers share one's weights."""
    sizes = tiny_sizes(emb_dim=C, n_heads=8, ffn_dim=4 * C, n_layers=1, vocab_size=300, context_length=4096)
    parameters = random_parameters(sizes)
    parameters |= {
        name.replace(".0.", f".{i}.", 1): value
        for name, value in list(parameters.items())
        for i in range(1, n_layers)
        if name.startswith("trf_blocks.0.")
    }
    return NativeModel(sizes.model_copy(update={"n_layers": n_layers}), parameters, 1)


def test_a_pass_that_returns_early_goes_on_where_it_was() -> None:
    engine, ids = deep_engine(512, 24), [i % 300 for i in range(256)]
    cache = engine.new_cache(1, 256)
    start = time.perf_counter()
    at_once = engine.forward([ids], cache, n_logits=[4])
    assert time.perf_counter() - start > 0.06, "the pass was too fast to return early"
    cache.truncate(0)
    for first in range(0, 256, 4):
        by_four = engine.forward([ids[first : first + 4]], cache, n_logits=[4])
    assert np.abs(at_once - by_four).max() < 1e-3 * np.abs(by_four).max()


INTERRUPTED = """
import os, signal, threading, time
from tests.engine.native.test_threads import deep_engine
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
engine, sent = deep_engine(1024, 60), []
def interrupt():
    time.sleep(0.2)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    engine.forward([[1] * 4000], engine.new_cache(1, 4000))
    print("not interrupted")
except KeyboardInterrupt:
    print(time.monotonic() - sent[0])
"""


def test_ctrl_c_ends_a_long_prompt_soon() -> None:
    done = run("-c", INTERRUPTED)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.5  # 0.2 s on a core of its own; a pass takes 2 s
