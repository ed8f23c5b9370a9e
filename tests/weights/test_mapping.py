"""The file whose numbers are read is the one whose header was read, under any name, or the run ends."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gptcli.config.partition import Rank
from gptcli.errors import WeightsError
from gptcli.weights.arrays import read_arrays
from gptcli.weights.files import open_checkpoint
from gptcli.weights.load import load_weights
from gptcli.weights.plan import LoadPlan, plan_load
from gptcli.weights.shard import read_shards
from gptcli.weights.tensor_data import tensor_stats
from tests.models import lively_model, save_huggingface, tiny_config

READERS = {
    "torch": lambda plan: load_weights(plan, device=torch.device("cpu"), dtype=torch.float32),
    "numpy": lambda plan: read_arrays(plan, "float32"),
    "shards": lambda plan: list(read_shards(plan, Rank(0, 2))),
    "statistics": lambda plan: [tensor_stats(t) for t in plan.checkpoint.tensors.values()],
}


@pytest.fixture(params=READERS)
def read(request):
    return READERS[request.param]


@pytest.fixture
def plan(tmp_path) -> LoadPlan:
    return plan_load(save_huggingface(lively_model(tiny_config()), tmp_path), [])


def fails(read, plan: LoadPlan) -> str:
    with pytest.raises(WeightsError) as error:
        read(plan)
    assert str(plan.checkpoint.files[0]) in str(error.value)
    return str(error.value)


def test_a_file_that_is_deleted_after_its_header_is_named(read, plan):
    plan.checkpoint.files[0].unlink()
    assert "cannot be read: No such file" in fails(read, plan)


@pytest.mark.parametrize("emb_dim", [24, 28], ids=["same sizes", "other sizes"])
def test_a_file_that_is_replaced_after_its_header_is_refused(read, plan, emb_dim):
    save_huggingface(lively_model(tiny_config(emb_dim=emb_dim), seed=1), plan.checkpoint.path)
    assert "another program changed it" in fails(read, plan)


def test_a_file_that_is_cut_after_its_header_is_refused(read, plan):
    os.truncate(plan.checkpoint.files[0], 4096)
    assert "another program changed it" in fails(read, plan)


def test_a_path_that_is_not_utf8_is_read_like_any_other(read, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    read(plan_load(save_by_bytes(folder), []))


def save_by_bytes(folder: Path) -> Path:
    """Save a model where safetensors cannot write: in a folder whose name is not UTF-8."""
    here = save_huggingface(lively_model(tiny_config()), folder.parent / "saved")
    return here.rename(folder)


def test_numbers_at_any_address_are_read(read, tmp_path):
    """The data begins where the header ends, which may be at any byte."""
    folder = save_huggingface(lively_model(tiny_config()), tmp_path)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for shift in (1, 2, 3):
        header = whole[8 : 8 + length] + b" " * shift
        path.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + length :])
        read(plan_load(folder, []))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "pipe.safetensors"
    os.mkfifo(path)
    kept_open = os.open(path, os.O_RDWR)  # so that a reader would get these bytes instead of waiting
    os.write(kept_open, b"\0" * 8)
    os.mkfifo(tmp_path / "pipe.safetensors.index.json")
    for named in (path, tmp_path, tmp_path / "pipe.safetensors.index.json"):
        with pytest.raises(WeightsError, match=r"not a regular file|neither model"):
            open_checkpoint(named)
    os.close(kept_open)


def test_a_device_is_refused(tmp_path):
    (tmp_path / "zero.safetensors").symlink_to("/dev/zero")
    with pytest.raises(WeightsError, match="not a regular file"):
        open_checkpoint(tmp_path / "zero.safetensors")


def test_an_empty_tensor_at_the_end_of_the_file_is_read(tmp_path):
    save_file({"a": torch.ones(3), "b": torch.ones(0, 2)}, tmp_path / "x.safetensors")
    tensors = open_checkpoint(tmp_path / "x.safetensors").tensors
    assert tensor_stats(tensors["b"]).share_zero == 0
