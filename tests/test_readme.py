"""The README: every `console` block is run, and prints what the README shows."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gptcli.cli import boundary
from gptcli.cli.train import PROGRAM
from gptcli.cli.train import app as train_app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n\$ gptcli (.*)\n((?:.*\n)*?)```$", README, re.MULTILINE)


def test_the_readme_has_console_blocks():
    assert len(BLOCKS) == README.count("```console")
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_what_the_readme_shows(command, shown, process):
    command, _, last = command.partition(" | tail -")
    result = process(*shlex.split(command), stderr=subprocess.STDOUT)
    assert result.returncode == 0
    lines = [line.rstrip() for line in result.stdout.decode().splitlines()]
    assert lines[-int(last) if last else None :] == shown.splitlines()


def test_every_option_of_the_readme_exists(cli, capfd):
    commands = ("generate", "params", "inspect", "plot-activation")
    helps = "".join(cli(command, "--help").out for command in commands)
    boundary.run(train_app, PROGRAM, ["--help"])
    helps += capfd.readouterr().out
    torchruns = {"--nproc-per-node", "--nnodes"}
    for option in set(re.findall(r"--[a-z][a-z-]+", README)) - torchruns:
        assert option in helps, option


def test_every_picture_of_the_readme_is_there():
    pictures = re.findall(r"!\[.*\]\((.*)\)", README)
    assert len(pictures) >= 3
    assert all((ROOT / picture).is_file() for picture in pictures)
