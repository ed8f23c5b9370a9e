"""The standard streams as other programs leave them: closed or full; and a prompt in UTF-16."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = (sys.executable, "-m", "gptcli")
ROOT = Path(__file__).parents[2]


def shell(command: str, cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a line of shell, in which "$@" is the program."""
    program = ("sh", "-c", command, "sh", *PROGRAM, *arguments)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, timeout=120, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("stderr", ["/dev/full", "/dev/null"])
def test_notes_that_cannot_be_printed_change_neither_answer_nor_status(stderr, tiny_config_file, tmp_path):
    options = ("-n", "1", "-c", str(tiny_config_file))
    answer = shell(f'"$@" 2>{stderr}', tmp_path, "generate", "Hi", *options)
    assert answer.returncode == 0
    assert answer.stdout.startswith(b"Hi")
    assert shell(f'"$@" 2>{stderr}', tmp_path, "nonsense").returncode == 2


def test_an_output_file_needs_no_stdout_and_is_no_standard_stream(tiny_config_file, tmp_path):
    options = ("-n", "1", "-c", str(tiny_config_file))
    result = shell('"$@" <&- >&- 2>&-', tmp_path, "generate", "Hi", "-o", "OUT.txt", *options)
    assert result.returncode == 0
    assert (tmp_path / "OUT.txt").read_bytes().startswith(b"Hi")
    code = (
        "from gptcli.cli.streams import *; prepare_streams(); f = open('OUT', 'w'); f.write(str(f.fileno()))"
    )
    shell(f'{sys.executable} -c "{code}" <&- >&- 2>&-', tmp_path)
    assert int((tmp_path / "OUT").read_text()) > 2


def test_a_utf16_prompt_is_read_by_its_mark(tiny_config_file, tmp_path):
    (tmp_path / "p").write_bytes("Hé\r\n".encode("utf-16"))
    result = shell('"$@" < p', tmp_path, "generate", "-q", "-n", "0", "-c", str(tiny_config_file))
    assert result.stdout.decode() == "Hé\n"
