"""Odd files: whatever is wrong, there are one or two lines and status 1 or 2, never a traceback.

`GPTCLI_FUZZ=20000 pytest tests/cli/test_fuzz.py -s` tries that many files of each kind and prints timings.
"""

import os
import random
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.cli import fuzzing
from tests.models import lively_model, save_huggingface, save_tutorial, tiny_config, write_yaml

MIXTURE = {"feed_forward": "moe", "ffn_dim": 4, "n_experts": 2}
EXAMPLES = int(os.environ.get("GPTCLI_FUZZ", "150"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="GPTCLI_FUZZ" not in os.environ,  # the suite tries the same files everywhere
    suppress_health_check=list(HealthCheck),
)


class Tries:
    """Runs commands on files in a folder, checks every outcome, and measures the time."""

    def __init__(self, cli, folder: Path) -> None:
        self.cli, self.folder, self.seconds = cli, folder, []

    def __call__(self, statuses: tuple[int, ...], *arguments: object) -> None:
        start = time.perf_counter()
        result = self.cli(*arguments)
        self.seconds.append(time.perf_counter() - start)
        assert result.status in statuses, result
        assert "internal error" not in result.err
        assert "Traceback" not in result.err
        assert len(result.err.splitlines()) <= 2, result.err
        assert "\x1b" not in result.err

    def report(self, what: str) -> None:
        if "GPTCLI_FUZZ" in os.environ:
            median, most = statistics.median(self.seconds), max(self.seconds)
            print(
                f"\n{what}: {len(self.seconds):,} inputs, median {median * 1e3:.1f} ms, at most {most:.2f} s"
            )


@pytest.fixture
def tries(cli, tmp_path, request) -> Iterator[Tries]:
    made = Tries(cli, tmp_path)
    yield made
    made.report(request.node.name)


def test_odd_configs_give_a_short_error(tries):
    @fuzz
    @given(fuzzing.configs())
    def run(config: tuple[str, bytes]) -> None:
        suffix, content = config
        path = tries.folder / f"config{suffix}"
        path.write_bytes(content)
        tries((0, 2), "params", "-c", path)

    run()


@pytest.mark.parametrize("content", fuzzing.BOMBS, ids=lambda text: repr(text[:20]))
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_bombs_take_little_memory(tries, content, suffix):
    path = tries.folder / f"config{suffix}"
    path.write_text(content)
    tries((2,), "params", "-c", path)
    tracemalloc.start()
    try:
        tries((2,), "params", "-c", path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000 + 200 * len(content)


def test_odd_weights_give_a_short_error(tries):
    path = tries.folder / "model.safetensors"
    config = write_yaml(tries.folder / "config.yaml", fuzzing.tiny_values(**fuzzing.SMALL))

    @fuzz
    @given(fuzzing.safetensors())
    def run(content: bytes) -> None:
        path.write_bytes(content)
        tries((0, 1), "inspect", path, "-q")
        tries((0, 1), "inspect", path, "--check", "-c", config, "-q")
        # If the file loads, its vocabulary of 11 lacks the prompt's tokens, which is wrong usage (2).
        tries((0, 1, 2), "generate", "!", "-n", "1", "-w", path, "-c", config, "-q")

    run()


def test_odd_prompt_files_give_a_short_error(tries):
    config = write_yaml(tries.folder / "config.yaml", fuzzing.tiny_values(**fuzzing.SMALL))

    @fuzz
    @given(fuzzing.prompt_files())
    def run(prompts: tuple[str, bytes]) -> None:
        suffix, content = prompts
        path = tries.folder / f"prompts{suffix}"
        path.write_bytes(content)
        column = ("--column", "prompt") if suffix == ".csv" else ()
        tries((0, 1, 2), "generate", "-i", path, "-n", "1", "--json", "-c", config, "-q", *column)

    run()


def broken(whole: bytes, end: int) -> Iterator[bytes]:
    """Yield the file with each byte before `end` changed, in turn to any byte and to a byte of JSON."""
    generator = random.Random(0)
    for at in range(end):
        value = generator.choice(b'"{}[]:,0123456789-\\ntf') if at % 2 else generator.randrange(256)
        if value != whole[at]:
            yield whole[:at] + bytes([value]) + whole[at + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "keys"), [(save_huggingface, {}), (save_tutorial, MIXTURE)], ids=["huggingface", "tutorial"]
)
def test_any_changed_byte_of_a_header_or_config_gives_a_short_error(tries, tmp_path, save, keys):
    folder: Path = save(lively_model(tiny_config(**fuzzing.SMALL, **keys)), tmp_path)
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    for content in broken(whole, 8 + int.from_bytes(whole[:8], "little")):
        weights.write_bytes(content)
        tries((0, 1), "inspect", folder, "-q")
    weights.write_bytes(whole)
    whole = config.read_bytes()
    for content in broken(whole, len(whole)):
        config.write_bytes(content)
        tries((0, 1), "inspect", folder, "-q")
        tries((0, 2), "params", "-c", config)
