"""Fixtures that run the command line: in this process (fast), or in a process of its own, as a shell does."""

import io
import os

# Set before torch is imported: two workers run at once, and threads of one would spin while the other runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gptcli.cli.app import run
from tests.models import tiny_values, write_yaml


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


class Stdin(io.TextIOWrapper):
    """A standard input with these bytes; without any, reading it fails the test."""

    def __init__(self, data: bytes | None, terminal: bool) -> None:
        super().__init__(io.BytesIO(data or b""))
        self.data, self.terminal = data, terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def buffer(self):
        assert self.data is not None, "stdin was read"
        return io.BytesIO(self.data)


@pytest.fixture
def cli(capfd, monkeypatch) -> Callable[..., Result]:
    """Return a function that runs a command in this process: `cli("generate", "Hi", stdin=b"…")`."""

    def call(*arguments: object, stdin: bytes | None = None, terminal: bool = False) -> Result:
        monkeypatch.setattr(sys, "stdin", Stdin(stdin, terminal))
        capfd.readouterr()
        status = run([str(argument) for argument in arguments])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Result(status, out, err)

    return call


@pytest.fixture
def process(tmp_path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Return a function that runs `python -m gptcli` in a folder of its own, as a shell would."""

    def call(
        *arguments: object, env: dict[str, str] | None = None, **options
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "gptcli", *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])} | (env or {}),
            cwd=options.pop("cwd", tmp_path),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            timeout=120,
            check=False,
            **options,
        )

    return call


@pytest.fixture(scope="session")
def tiny_config_file(tmp_path_factory) -> Path:
    """Write the config of a model that is built in milliseconds: GPT-2's vocabulary, a context of 32."""
    return write_yaml(
        tmp_path_factory.mktemp("tiny") / "tiny.yaml", tiny_values(vocab_size=50257, context_length=32)
    )
