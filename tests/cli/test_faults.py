"""Faults around a run: signals, full disks, read-only folders; tests/README.md names these tests."""

import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.models import save_tutorial, scripted_model

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "gptcli"]
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_at_any_moment_ends_the_program_with_its_status_and_no_traceback(number, status):
    """Send the signal while torch or the model loads or decodes, after Python's own start."""
    draw = random.Random(number)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import gptcli.system.signals"], cwd=ROOT, check=True)
    python_seconds = time.perf_counter() - start  # 50 ms, and more on a busy machine
    for _ in range(12):
        command = [*COMMAND, "generate", "Once upon a time", "-n", "2000", "-q"]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        seconds = draw.uniform(2 * python_seconds, 2.0 + 2 * python_seconds)
        time.sleep(seconds)
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
        assert child.returncode == status, (seconds, err)
        assert err == b""


def test_a_full_disk_leaves_the_old_file_as_it_was(process, tmp_path, tiny_config_file):
    """Simulate a full disk by a limit on file size: the write fails halfway."""
    answer = tmp_path / "answer.txt"
    answer.write_text("what was there")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    arguments = ("generate", "word " * 1000, "-n", 1, "-q", "-c", tiny_config_file)
    result = process(*arguments, "-o", answer, preexec_fn=limit)
    assert (result.returncode, result.stdout) == (1, b"")
    assert result.stderr == f"error: --output {answer}: File too large\n".encode()
    assert answer.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [answer]


def test_a_batch_stopped_by_a_full_disk_can_be_resumed(process, tmp_path, tiny_config_file):
    source, target = tmp_path / "p.txt", tmp_path / "r.jsonl"
    source.write_text("".join(f"prompt {i}\n" for i in range(9)))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    command = ("generate", "-i", source, "-o", target, "-n", 2, "-c", tiny_config_file)
    result = process(*command, preexec_fn=limit)
    assert result.returncode == 1
    assert b"records; --resume continues after them" in result.stderr
    assert result.stderr.endswith(f"error: --output {target}: File too large\n".encode())
    assert target.stat().st_size == 2000  # the last line is half written
    assert process(*command, "--resume").returncode == 0
    assert len(target.read_bytes().splitlines()) == 9


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "Hi", "-n", "2"),
        ("params",),
        ("inspect", "--prompt", "Hi"),
        ("plot-activation", "gelu"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_written_but_the_answer(process, tmp_path, arguments):
    """So a read-only installation works, and so does a HOME that does not exist."""
    places = {name: tmp_path / name.lower() for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "CWD")}
    for place in places.values():
        place.mkdir()
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "gptcli").rglob("*")}
    env = {name: str(place) for name, place in places.items()} | {"PYTHONDONTWRITEBYTECODE": "1"}
    assert process(*arguments, env=env, cwd=places["CWD"]).returncode == 0
    assert [path for path in tmp_path.rglob("*") if path not in places.values()] == []
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "gptcli").rglob("*")} == before
    nowhere = dict.fromkeys(places, "/dev/null/nowhere") | {"PYTHONDONTWRITEBYTECODE": "1"}
    assert process(*arguments, env=nowhere).returncode == 0


def test_escape_sequences_of_a_file_never_reach_the_terminal(process, tmp_path):
    """Put them into tensor names, metadata and paths, shown in tables and in errors."""
    folder = save_tutorial(scripted_model({1: 2}), tmp_path / f"a{ESCAPE}")
    odd = tmp_path / "odd.safetensors"
    save_file({ESCAPE: torch.ones(2), "[red]x": torch.ones(1)}, odd, metadata={ESCAPE: ESCAPE})
    for arguments in (
        ("inspect", odd),
        ("inspect", odd, "--tensor-stats"),
        ("inspect", odd, "--diff", folder),
        ("inspect", folder),
        ("inspect", f"{odd}{ESCAPE}"),
        ("generate", "Hi", "-w", odd),
        ("params", "-c", f"{ESCAPE}.yaml"),
        ("generate", "Hi", f"--set={ESCAPE}=1"),
        ("generate", "Hi", "-p", ESCAPE),
        ("plot-activation", ESCAPE),
    ):
        result = process(*arguments)
        assert b"\x1b" not in result.stdout + result.stderr, arguments
        assert b"\x07" not in result.stdout + result.stderr, arguments


def test_a_clock_that_is_wrong_and_runs_backwards_changes_nothing():
    code = """
import itertools, sys, time
ticks = itertools.count(0, -3600)
time.time = lambda: next(ticks)
from gptcli.cli.app import run
sys.exit(run(["generate", "Hi", "-n", "3", "-q", "--stats"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    assert result.stdout.startswith(b"Hi")


def test_running_out_of_memory_while_decoding_names_what_helps(cli, monkeypatch, tiny_config_file):
    class OutOfMemoryError(RuntimeError):
        """An error with the name of `torch.cuda.OutOfMemoryError`."""

    def fail(*_: object, **_options: object) -> None:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total ...")

    monkeypatch.setattr("gptcli.model.gpt.GPTModel.hidden", fail)
    result = cli("generate", "Hi", "-c", tiny_config_file, "-q", "--engine", "torch")
    assert result.status == 1
    assert result.err == "error: out of memory; take a smaller preset, a smaller --dtype, or fewer tokens\n"


def test_the_readmes_table_names_tests_that_exist():
    named = re.findall(r"`tests/([\w/]+\.py)::(\w+)`", (ROOT / "tests" / "README.md").read_text())
    assert len(named) > 15
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), (file, name)
