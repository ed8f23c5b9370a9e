"""Ways to run the command line: in this process (fast), or as a user's shell does (a process of its own)."""

import io
import os

# Two workers run at once: threads of one would spin, waiting for those of the other. Before torch's import.
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
    """A standard input with these bytes; reading one that must not be read fails the test."""

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
    """Run a command in this process: `cli("generate", "Hi", stdin=b"…")` gives status, stdout and stderr."""

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
    """Run `python -m gptcli` in a folder of its own, as a shell would."""

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
    """A config of a model that is built in milliseconds, with GPT-2's vocabulary and a context of 32."""
    return write_yaml(
        tmp_path_factory.mktemp("tiny") / "tiny.yaml", tiny_values(vocab_size=50257, context_length=32)
    )
