"""Standard streams that are closed, full or slow, and text in other encodings."""

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "gptcli", "generate"]


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of bash in which `$G` is `gptcli generate`."""
    env = os.environ | {"G": " ".join(COMMAND), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=env, timeout=60, check=False
    )


def test_all_of_an_answer_reaches_a_non_blocking_stdout_with_a_slow_reader():
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    arguments = ["Hi", "-n", "0", "--num-samples", "20000", "-q"]
    child = subprocess.Popen([*COMMAND, *arguments], stdout=writing, cwd=ROOT)
    os.close(writing)
    time.sleep(1.5)
    received = 0
    while data := os.read(reading, 1 << 16):
        received += len(data)
    os.close(reading)
    assert (child.wait(), received) == (0, 139_996)


@pytest.mark.parametrize(
    ("command", "status", "out"),
    [
        ("$G Hi -n 2 2>/dev/full", 0, "Hi, he\n"),
        ("$G Hi -n 2 2> >(true)", 0, "Hi, he\n"),
        ("$G --nonsense 2>/dev/full", 2, ""),
        ("$G Hi -q -n 2 -o /dev/stdout | cat", 0, "Hi, he\n"),
    ],
)
def test_a_stderr_that_is_full_or_gone_loses_notes_alone_and_a_pipe_is_an_output(command, status, out):
    result = shell(command)
    assert (result.returncode, result.stdout) == (status, out)


@pytest.mark.parametrize("command", ["$G <&-", "$G - <&-", "$G -i - --input-format txt <&-"])
def test_a_closed_stdin_is_wrong_usage(command):
    result = shell(command)
    assert result.returncode == 2
    assert "stdin is closed" in result.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_prompt_in_any_marked_encoding_is_the_same_text(cli, tmp_path, encoding):
    expected = json.loads(cli("generate", "Grüß Gott", "-n", 3, "--json").out)
    found = cli("generate", "-n", 3, "--json", "-q", stdin="Grüß Gott\r\n".encode(encoding))
    assert json.loads(found.out)["prompt_ids"] == expected["prompt_ids"]
    for name, text in (("p.txt", "Grüß Gott\n"), ("p.csv", "text\nGrüß Gott\n")):
        (tmp_path / name).write_bytes(text.encode(encoding))
        options = ("--column", "text") if name.endswith("csv") else ()
        result = cli("generate", "-i", tmp_path / name, "-n", 3, "--json", "-q", *options)
        assert json.loads(result.out)["completion_ids"] == expected["completion_ids"], name


def test_a_link_to_itself_is_refused_before_the_work(cli, tmp_path):
    link = tmp_path / "link.txt"
    link.symlink_to(link)
    result = cli("generate", "Hi", "-n", 1, "-q", "-o", link)
    assert (result.status, "is a link to nothing, or to itself" in result.err) == (1, True)
