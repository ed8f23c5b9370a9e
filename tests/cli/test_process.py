"""The program as the shell sees it: start-up, streams, signals, broken pipes, odd environments."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.models import save_tutorial, scripted_model

HEAVY = ("torch", "tiktoken", "safetensors", "numpy", "matplotlib", "plotille", "psutil", "transformers")
ROOT = Path(__file__).parents[2]


def test_help_params_and_version_never_load_what_is_heavy():
    code = f"""
import sys
from gptcli.cli.app import run
for arguments in (["--help"], ["--version"], ["params"], ["params", "--all", "--json"], ["inspect"]):
    assert run(arguments) == 0, arguments
for command in ("generate", "params", "inspect", "plot-activation"):
    assert run([command, "--help"]) == 0
run(["generate", "Hi", "--device", "tpu"]), run(["plot-activation", "nothing"]), run(["params", "-p", "none"])
loaded = sorted(set({HEAVY!r}) & set(sys.modules))
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)


def test_help_needs_no_validation():
    code = """
import sys
from gptcli.cli.app import run
assert run(["--help"]) == 0
assert "pydantic" not in sys.modules
for command in ("generate", "params", "inspect", "plot-activation"):  # here Typer itself imports pydantic
    assert run([command, "--help"]) == 0
assert not {"gptcli.config.model_config", "yaml"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)


def test_importing_the_package_loads_nothing_heavy():
    code = f"import gptcli, sys; assert not set({HEAVY!r}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)


def test_generate_imports_no_explanations_training_or_plots(tiny_config_file):
    code = f"""
import sys
from gptcli.cli.app import run
assert run(["generate", "Hi", "-n", "2", "-q", "-c", {str(tiny_config_file)!r}]) == 0
others = ("gptcli.explain", "gptcli.train", "matplotlib", "plotille", "transformers", "tokenizers")
assert not [name for name in sys.modules if name.startswith(others)]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize(
    "options",
    [
        "--json --logprobs --stats",
        "--temperature 0.9 --num-samples 2 --top-k 40 --top-p 0.9",
        "--dtype bfloat16",
        "--dtype float16 --no-kv-cache",
        "--quantize int8",
        "--speculate self --stop King",
        "--repetition-penalty 1.2 --no-repeat-ngram 3 --ban King",
    ],
)
def test_generate_from_a_file_on_a_cpu_loads_no_torch(options):
    code = f"""
import sys
from gptcli.cli.app import run
assert run(["generate", "The King", "-n", "12", "-q", *{options.split()!r}]) == 0
assert "torch" not in sys.modules
assert ("gptcli.decode.processors" in sys.modules) == {"--ban" in options}
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)


def test_inspecting_a_file_loads_no_torch(tmp_path):
    folder = save_tutorial(scripted_model({1: 2}), tmp_path)
    code = f"""
import sys
from gptcli.cli.app import run
assert run(["inspect", {str(folder)!r}]) == 0
assert not set({HEAVY!r}) & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"COLUMNS": "20"}, {"NO_COLOR": "1"}], ids=str)
def test_a_pipe_gets_full_numbers_whatever_the_terminal(process, env):
    out = process("params", "-p", "gpt2-xl", env=env).stdout.decode()
    assert "1,557,611,200" in out
    assert "key/value cache, 1,024 tokens    629,145,600  bytes = 0.63 GB" in out
    assert "\x1b" not in out


def test_a_command_substitution_holds_the_text_and_nothing_else(process, tiny_config_file):
    result = process("generate", "Hi", "-c", tiny_config_file, "-n", 2)
    assert result.returncode == 0
    assert result.stdout.startswith(b"Hi")
    assert result.stdout.count(b"\n") == 1
    assert b"random" in result.stderr


def test_generate_needs_no_network_home_or_cache(process, tiny_config_file):
    env = {
        "HOME": "/dev/null/home",
        "TIKTOKEN_CACHE_DIR": "/dev/null/cache",
        "HTTPS_PROXY": "http://127.0.0.1:1",
    }
    result = process("generate", "Hi", "-c", tiny_config_file, "-n", 2, env=env)
    assert result.returncode == 0
    assert b"Traceback" not in result.stderr


def test_a_config_may_come_from_a_pipe_which_can_be_read_once(tiny_config_file):
    gptcli = f"{sys.executable} -m gptcli"
    for command in ("generate Hi -n 1 -q", "params", "inspect --prompt Hi -q"):
        line = f"{gptcli} {command} -c <(cat {tiny_config_file})"
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        result = subprocess.run(["bash", "-c", line], env=env, capture_output=True, timeout=120, check=False)
        assert (result.returncode, result.stderr) == (0, b""), command


def test_stdin_that_never_closes_is_not_read(process, tiny_config_file):
    reader, writer = os.pipe()
    try:
        result = process("generate", "Hi", "-c", tiny_config_file, "-n", 1, stdin=reader)
    finally:
        os.close(reader), os.close(writer)
    assert result.returncode == 0


@pytest.mark.parametrize(
    "locale", [{"LANG": "C"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"LC_ALL": "POSIX"}]
)
def test_stdout_is_utf8_whatever_the_locale(process, tiny_config_file, locale):
    result = process("generate", "naïve 😀", "-c", tiny_config_file, "-n", 0, env=locale)
    assert result.stdout == "naïve 😀\n".encode()
    assert process("params", env=locale).returncode == 0
    assert "─".encode() in process("params", env=locale).stdout


@pytest.mark.parametrize("arguments", ["params --all --json", "--help", "generate --help"])
def test_a_reader_that_goes_away_gets_no_message(arguments):
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m gptcli {arguments} | head -c 1"],
        capture_output=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=True,
    )
    assert result.stderr == b""


def test_a_reader_that_is_gone_from_the_start_gives_141(process, tiny_config_file):
    for arguments in (["generate", "Hi", "-q", "-c", tiny_config_file, "-n", 3], ["params"], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        result = process(*arguments, stdout=writer)
        os.close(writer)
        assert (result.returncode, result.stderr) == (141, b""), arguments


def test_stdout_closed_or_full_is_an_error(process):
    if Path("/dev/full").exists():
        with Path("/dev/full").open("wb") as full:
            result = process("params", stdout=full)
        assert (result.returncode, result.stderr) == (1, b"error: stdout: No space left on device\n")
    command = f"{sys.executable} -m gptcli params >&-"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    closed = subprocess.run(["bash", "-c", command], capture_output=True, env=env, timeout=120, check=False)
    assert closed.returncode == 1
    assert closed.stderr == b"error: stdout is closed; redirect it to a file or to /dev/null\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("to_file", [False, True])
def test_an_interruption_keeps_the_printed_text_and_leaves_no_partial_file(tmp_path, number, status, to_file):
    folder = save_tutorial(scripted_model({64: 65, 65: 64}, context_length=1024), tmp_path / "m")
    target = tmp_path / "out.txt"
    options = ["-o", str(target)] if to_file else []
    running = subprocess.Popen(
        [sys.executable, "-m", "gptcli", "generate", "a", "-w", str(folder), "-n", "10000000", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    if to_file:
        assert running.stderr.readline()  # the note about the context, just before decoding
        time.sleep(2)
    else:
        assert running.stdout.read(20) == b"ab" * 10
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == status
    assert b"Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert to_file or out.strip(b"ab") == b"\n"  # the line is complete


def test_on_a_terminal_control_characters_are_made_visible(tiny_config_file):
    import pty

    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "gptcli", "generate", "\x1b[31mred\tx", "-q", "-n", "0"]
    subprocess.run(
        [*command, "-c", str(tiny_config_file)], stdout=terminal, cwd=ROOT, timeout=120, check=True
    )
    os.close(terminal)
    assert os.read(controller, 1000) == b"\\x1b[31mred\tx\r\n"
    os.close(controller)


def test_a_picture_needs_no_display(process, tmp_path):
    env = {"DISPLAY": "localhost:64.0", "HOME": "/dev/null/home", "MPLBACKEND": "TkAgg"}
    result = process("plot-activation", "gelu", "-o", "a.svg", env=env)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_a_limit_on_memory_is_respected():
    command = f"ulimit -v 6000000; {sys.executable} -m gptcli generate Hi -p gpt2-xl -n 1"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(["bash", "-c", command], capture_output=True, env=env, timeout=120, check=False)
    assert result.returncode == 1
    assert b"not enough memory: float32 weights (" in result.stderr
    assert b"; take --preset gpt2-large\n" in result.stderr
    assert result.stderr.count(b"\n") == 1
