"""Parameters as NumPy arrays: the same numbers on every path, and no pages of the file left in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gptcli.runtime.torch_runtime import load_torch_model
from gptcli.system.device import Device
from gptcli.weights.arrays import read_arrays
from gptcli.weights.mapped import map_file, release_pages
from gptcli.weights.source import select_source
from tests.models import lively_model, peak_bytes, save_huggingface, save_tutorial, tiny_config

DTYPES = ("float32", "bfloat16", "float16")
SAVE = {"huggingface": save_huggingface, "tutorial": save_tutorial}


def cast_file(folder, dtype):
    path = folder / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)


@pytest.fixture(scope="module", params=[(layout, tied) for layout in SAVE for tied in (True, False)], ids=str)
def folder(request, tmp_path_factory):
    layout, tied = request.param
    model = lively_model(tiny_config(tie_embeddings=tied, vocab_size=301, emb_dim=60, ffn_dim=130))
    with torch.no_grad():
        model.tok_emb.weight[3] = 0
        model.trf_blocks[1].ff.layers[0].weight[5] *= 1e9
    return SAVE[layout](model, tmp_path_factory.mktemp(layout))


@pytest.mark.parametrize("stored", [*DTYPES, "float64"])
def test_the_native_kernels_and_pytorch_get_the_same_numbers(folder, stored):
    cast_file(folder, getattr(torch, stored))
    source = select_source(folder)
    for dtype in DTYPES:
        for quantize in (False, True):
            _, found, _ = read_arrays(source.plan, dtype, quantize=quantize)
            model, _ = load_torch_model(source, Device("cpu"), dtype, 0, quantize=quantize)
            named = dict(model.named_parameters()) | dict(model.named_buffers())
            assert found.keys() == named.keys()
            for name, tensor in named.items():
                tensor = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
                assert found[name].dtype == tensor.numpy().dtype, (name, dtype)
                assert np.array_equal(found[name], tensor.numpy()), (name, dtype)


def test_query_key_and_value_stay_neighbors_when_they_are_converted(tmp_path):
    plan = select_source(save_huggingface(lively_model(tiny_config()), tmp_path)).plan
    for dtype in DTYPES:
        _, parameters, _ = read_arrays(plan, dtype)
        query, key, value = (parameters[f"trf_blocks.1.att.W_{n}.weight"] for n in ("query", "key", "value"))
        width = query.nbytes // len(query)
        assert key.ctypes.data - query.ctypes.data == width
        assert value.ctypes.data - key.ctypes.data == width


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file of 64 MB, a third of it a head of its own that equals the embedding."""
    config = tiny_config(vocab_size=20000, emb_dim=256, n_heads=4, n_layers=7, tie_embeddings=True)
    folder = save_huggingface(
        lively_model(config), tmp_path_factory.mktemp("large"), tie_word_embeddings=None
    )
    path = folder / "model.safetensors"
    state = load_file(path)
    save_file(state | {"lm_head.weight": state["wte.weight"].clone()}, path)
    return folder


def mapped_bytes(path: Path) -> int:
    """Return the bytes of a mapped file that are in this process's memory."""
    maps = Path("/proc/self/smaps").read_text().split("VmFlags:")
    sizes = [int(one.partition("\nRss:")[2].split()[0]) for one in maps if str(path) in one]
    return 1024 * sum(sizes)


def reset_peak() -> int:
    """Let the peak memory be what is taken now, and return it. Source: man 5 proc_pid_clear_refs."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the peak cannot be measured: {error}")
    return peak_bytes()


@pytest.mark.parametrize(
    ("dtype", "quantize"), [("bfloat16", False), ("float16", False), ("float32", True), ("bfloat16", True)]
)
def test_conversion_takes_the_memory_of_its_result_alone(large, dtype, quantize):
    plan = select_source(large).plan
    read_arrays(plan, dtype, quantize=quantize)  # imports, and memory that the allocator keeps
    before = reset_peak()
    config, parameters, _ = read_arrays(plan, dtype, quantize=quantize)
    assert config.tie_embeddings
    made = sum(array.nbytes for array in parameters.values() if array.dtype != np.float32)
    assert peak_bytes() - before < made + 8e6
    assert mapped_bytes(large) < 1e6 < 60e6 < plan.checkpoint.n_bytes


def test_what_is_not_converted_is_read_when_it_is_needed(large):
    plan = select_source(large).plan
    _, parameters, _ = read_arrays(plan, "float32")
    assert mapped_bytes(large) < 1e6
    up = parameters["trf_blocks.0.ff.layers.0.weight"]
    assert up.sum() == load_file(large / "model.safetensors")["h.0.mlp.c_fc.weight"].numpy().sum()
    assert not up.flags.owndata


def test_pages_that_were_released_are_read_again(large):
    path = large / "model.safetensors"
    expected = path.read_bytes()
    numbers = np.frombuffer(map_file(path), np.uint8)
    one, many = numbers[70_001:70_002], numbers[: 1 << 20].reshape(64, -1)[3:, 9:50]
    for part, most in ((one, 1 << 16), (many, 1 << 20), (numbers[5:-7], len(numbers))):
        assert numbers.tobytes() == expected
        before = mapped_bytes(path)
        release_pages(part)
        assert before - most - 4096 <= mapped_bytes(path) <= before - part.nbytes
    assert numbers.tobytes() == expected


def test_arrays_that_are_no_views_of_a_file_are_left_alone():
    numbers = np.arange(1 << 20)
    for array in (
        numbers,
        numbers[5:],
        numbers[:0],
        np.frombuffer(numbers.tobytes(), np.int64),
        np.array(3.0),
    ):
        before = array.copy()
        release_pages(array)
        assert np.array_equal(array, before)


def test_a_head_differs_from_the_embedding_wherever_the_difference_lies(tmp_path):
    model = lively_model(tiny_config(tie_embeddings=True, vocab_size=3000, emb_dim=100))
    folder = save_huggingface(model, tmp_path, tie_word_embeddings=None)
    path = folder / "model.safetensors"
    state = load_file(path)
    embedding = state["wte.weight"]
    for row in (None, 0, 2999):
        for dtype in (torch.float32, torch.bfloat16):
            head = embedding.bfloat16().to(dtype)
            if row is not None:
                head[row, 99] += 1
            save_file(state | {"wte.weight": embedding.bfloat16().float(), "lm_head.weight": head}, path)
            config, parameters, _ = read_arrays(select_source(folder).plan, "float32")
            assert config.tie_embeddings == (row is None), (row, dtype)
            assert ("out_head.weight" in parameters) == (row is not None)
