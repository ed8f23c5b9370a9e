"""The README tells the truth: every `console` block is run, and what it shows is what is seen."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n\$ gptcli (.*)\n((?:.*\n)*?)```$", README, re.MULTILINE)


def test_there_are_such_blocks():
    assert len(BLOCKS) == README.count("```console")
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_what_the_readme_shows(command, shown, process):
    result = process(*shlex.split(command), stderr=subprocess.STDOUT)
    assert result.returncode == 0
    assert [line.rstrip() for line in result.stdout.decode().splitlines()] == shown.splitlines()


def test_every_option_of_the_readme_exists(cli):
    helps = "".join(
        cli(command, "--help").out for command in ("generate", "params", "inspect", "plot-activation")
    )
    for option in set(re.findall(r"--[a-z][a-z-]+", README)):
        assert option in helps, option
