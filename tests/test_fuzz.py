"""Strangers' files: whatever is wrong, it is one or two lines and status 1 or 2, never a traceback."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import lively_model, save_huggingface, save_tutorial, tiny_config

SMALL = {"n_layers": 1, "emb_dim": 8, "n_heads": 2, "vocab_size": 11, "context_length": 4}
MIXTURE = {"feed_forward": "moe", "ffn_dim": 4, "n_experts": 2}


def broken(whole: bytes, end: int) -> Iterator[bytes]:
    """The file with each byte before `end` changed, by turns to anything and to what JSON is made of."""
    generator = random.Random(0)
    for at in range(end):
        value = generator.choice(b'"{}[]:,0123456789-\\ntf') if at % 2 else generator.randrange(256)
        if value != whole[at]:
            yield whole[:at] + bytes([value]) + whole[at + 1 :]


def assert_foreseen(result, statuses: tuple[int, ...]) -> None:
    assert result.status in statuses
    assert "internal error" not in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("save", "keys"), [(save_huggingface, {}), (save_tutorial, MIXTURE)], ids=["huggingface", "tutorial"]
)
def test_every_byte_of_a_header_and_of_a_config(cli, tmp_path, save, keys):
    folder: Path = save(lively_model(tiny_config(**SMALL, **keys)), tmp_path)
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    for content in broken(whole, 8 + int.from_bytes(whole[:8], "little")):
        weights.write_bytes(content)
        assert_foreseen(cli("inspect", folder, "-q"), (0, 1))
    weights.write_bytes(whole)
    whole = config.read_bytes()
    for content in broken(whole, len(whole)):
        config.write_bytes(content)
        assert_foreseen(cli("inspect", folder, "-q"), (0, 1))
        assert_foreseen(cli("params", "-c", config), (0, 2))
