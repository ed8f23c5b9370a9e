"""The README: every `console` block is run, and prints what the README shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gptcli.cli import boundary
from gptcli.cli.train import PROGRAM
from gptcli.cli.train import app as train_app
from tests.test_ladder import FLOOR_OF

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n((?:.*\n)*?)```$", README, re.MULTILINE)
BLOCKS = re.findall(r"^```console\n\$ gptcli (.*)\n((?:.*\n)*?)```$", README, re.MULTILINE)


def test_the_readme_has_console_blocks():
    assert len(BLOCKS) == README.count("```console")
    assert len(BLOCKS) >= 5
    assert SNIPPETS


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_what_the_readme_shows(command, shown, process):
    command, last = split_pipe(command, "tail")
    command, first = split_pipe(command, "head")
    result = process(*shlex.split(command), stderr=subprocess.STDOUT)
    assert result.returncode == 0
    lines = [line.rstrip() for line in result.stdout.decode().splitlines()]
    assert lines[-last if last else None : first] == shown.splitlines()


def split_pipe(command: str, filter_name: str) -> tuple[str, int | None]:
    """Return a command without its ` | head -N` or ` | tail -N`, and N; None without such a filter."""
    command, _, n = command.partition(f" | {filter_name} -")
    return command, int(n) if n else None


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_python_snippet_runs(snippet, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, env=environment, capture_output=True, timeout=120
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout
    assert not run.stderr


def test_every_link_to_a_file_leads_somewhere():
    for page in ("README.md", ".github/CONTRIBUTING.md", "tests/README.md", "configs/README.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_every_test_that_the_table_of_faults_names_is_there():
    table = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", table)
    assert len(named) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_folder_of_the_map_is_there_in_the_order_of_the_ladder():
    """The map names what lies in `gptcli/` from the top down, as tests/test_ladder.py has it."""
    rows = re.findall(r"^\| `([a-z_]+)(?:/|\.py)` \|", README, re.MULTILINE)
    assert set(rows) == set(FLOOR_OF) - {"__main__", "__init__", "version"}
    assert [FLOOR_OF[name] for name in rows] == sorted(FLOOR_OF[name] for name in rows)


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
