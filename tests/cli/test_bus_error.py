"""A weights file that another program cuts while it is mapped."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gptcli.runtime.native_runtime import unavailable_reason
from tests.models import lively_model, save_huggingface, tiny_config

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(unavailable_reason(tiny_config()) is not None, reason="the kernels are not compiled")
def test_a_weights_file_cut_while_it_is_read_is_one_line_and_status_1(tmp_path):
    model = lively_model(tiny_config(vocab_size=50257, emb_dim=256, context_length=1024, n_layers=4))
    folder = save_huggingface(model, tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "gptcli", "generate", "Hi", "-w", folder, "-n", "100000", "-q"],
        cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.read(2) == b"Hi"  # the weights are mapped, and decoding goes on
    time.sleep(0.2)
    os.truncate(folder / "model.safetensors", 4096)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.decode() == f"error: {folder}: another program changed it while it was read\n"
