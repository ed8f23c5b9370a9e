"""The pool of threads: forks, threads of Python, many models, the end of the process, signals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gptcli.engine.native.threads import default_threads


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_thousand_rounds_of_forks_threads_and_models() -> None:
    done = run("-m", "tests.engine.native.soak", "1000")
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


def test_the_engine_imports_no_torch() -> None:
    code = "import sys, gptcli.engine.native.model; print(sorted({'torch', 'numba', 'pydantic'} & set(sys.modules)))"
    assert run("-c", code).stdout.strip() == "[]"


SLOW = """
import os, signal, threading, time
from gptcli.engine.native.model import NativeModel
from tests.engine.native.models import TinySizes, random_parameters
sizes = TinySizes(emb_dim=512, n_heads=8, ffn_dim=2048, n_layers=2, vocab_size=600, context_length=4096)
layer = random_parameters(sizes)
sizes.n_layers = 60
for i in range(2, 60):
    layer |= {name.replace(".0.", f".{i}.", 1): value for name, value in layer.items() if name.startswith("trf_blocks.0.")}
engine = NativeModel(sizes, layer, 1)
def interrupt():
    time.sleep(0.2)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
sent = []
threading.Thread(target=interrupt).start()
try:
    engine.forward([1] * 4000, engine.new_cache(1, 4000), n_logits=1)
    print("not interrupted")
except KeyboardInterrupt:
    print(time.monotonic() - sent[0])
"""


def test_ctrl_c_ends_a_long_prompt_soon() -> None:
    done = run("-c", SLOW)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.5  # 0.2 s on a core of its own


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        ({}, 64),
    ],
)
def test_default_threads_respect_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_threads(tmp_path) == expected
