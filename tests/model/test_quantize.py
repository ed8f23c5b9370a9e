"""int8 rows and scales, against the formula on the whole matrix."""

import numpy as np
import pytest
import torch
from torch import nn

from gptcli.model import arrays
from gptcli.model.arrays import PieceRunner, convert, widen
from gptcli.model.int8 import quantize_int8
from gptcli.model.quantize import convert_parameters, is_quantized, to_int8
from tests.models import lively_model, tiny_config


def naive_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and scales of float32 weights [O, I], all at once."""
    scale = np.maximum(np.abs(weight).max(axis=1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.round(weight / scale[:, None]).astype(np.int8), scale


def weights(n_rows: int = 150, n_columns: int = 65) -> np.ndarray:
    """Return rows of very different magnitudes, one of them zero."""
    numbers = np.random.default_rng(0).standard_normal((n_rows, n_columns))
    numbers *= np.geomspace(1e-45, 1e30, n_rows)[:, None]
    numbers[5] = 0
    return numbers.astype(np.float32)


def layouts(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Return the same matrix as files hold it."""
    n_rows, n_columns = weight.shape
    wide, odd = np.zeros((n_columns, 3 * n_rows), weight.dtype), np.zeros(weight.nbytes + 1, np.uint8)[1:]
    wide[:, n_rows : 2 * n_rows] = weight.T
    unaligned = odd.view(weight.dtype).reshape(weight.shape)
    unaligned[:] = weight
    return {
        "by rows": weight,
        "by columns": np.ascontiguousarray(weight.T).T,
        "a slice by columns": wide.T[n_rows : 2 * n_rows],
        "at an odd address": unaligned,
    }


@pytest.mark.parametrize("piece", [1, 1000, 1 << 18])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_rows_and_scales_are_those_of_the_formula(n_threads, piece, monkeypatch):
    monkeypatch.setattr(arrays, "PIECE", piece)
    expected_rows, expected_scale = naive_int8(weights())
    for name, weight in layouts(weights()).items():
        with PieceRunner(n_threads) as each:
            rows, scale = to_int8(weight, each=each)
        assert np.array_equal(rows, expected_rows), name
        assert np.array_equal(scale, expected_scale), name
        assert rows.flags.c_contiguous


@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16", "float64"])
def test_weights_are_rounded_to_the_dtype_before_they_become_int8(stored, dtype, monkeypatch):
    monkeypatch.setattr(arrays, "PIECE", 200)
    numbers = convert(np.random.default_rng(1).standard_normal((40, 33)).astype(np.float32), stored)
    expected_rows, expected_scale = naive_int8(widen(convert(numbers, dtype or stored)))
    for name, weight in layouts(numbers).items():
        rows, scale = to_int8(weight, dtype)
        assert np.array_equal(rows, expected_rows), name
        assert np.array_equal(scale, expected_scale), name


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_a_scale_that_shows_it(number):
    weight = weights()
    weight[7, 3] = number
    for each in layouts(weight).values():
        assert np.flatnonzero(~np.isfinite(to_int8(each)[1])).tolist() == [7]


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"tie_embeddings": True},
        {"feed_forward": "glu", "activation": "silu"},
        {"feed_forward": "moe", "n_experts": 3, "n_experts_per_token": 2, "n_shared_experts": 1},
        {"feed_forward": "moe", "n_experts": 2, "activation": "swish", "swish_learn_beta": True},
    ],
    ids=str,
)
def test_parameters_are_those_of_the_int8_model_in_pytorch(kind):
    config = tiny_config(**kind)
    tensors = {(name,): tensor.detach().numpy() for name, tensor in lively_model(config).named_parameters()}
    found = convert_parameters(tensors, None, PieceRunner(), quantize=True)
    model = lively_model(config)
    linears = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, _ in model.named_parameters() if is_quantized(name)} <= linears
    state = quantize_int8(model).state_dict()
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.from_numpy(found[name]).dtype == tensor.dtype, name
        assert np.array_equal(found[name], tensor.numpy()), name


def test_a_tensor_of_several_parameters_is_cut_along_its_rows():
    weight, embedding = np.random.default_rng(0).standard_normal((2, 8, 5)).astype(np.float32)
    tensors = {("a.weight", "b.weight"): weight, ("a.bias", "b.bias"): weight[:, 0]}
    tensors |= {("tok_emb.weight",): embedding}
    parameters = convert_parameters(tensors, "float16", PieceRunner(), quantize=False)
    assert np.array_equal(parameters["b.weight"], weight[4:].astype(np.float16))
    assert np.array_equal(parameters["b.bias"], weight[4:, 0].astype(np.float16))
    assert "out_head.weight" not in parameters
    quantized = convert_parameters(tensors, "float32", PieceRunner(), quantize=True)
    expected = {"a": weight[:4], "b": weight[4:], "out_head": embedding}
    for name, rows in expected.items():
        expected_rows, expected_scale = naive_int8(rows)
        assert np.array_equal(quantized[f"{name}.weight"], expected_rows)
        assert np.array_equal(quantized[f"{name}.scale"], expected_scale)
    assert quantized["tok_emb.weight"] is embedding


def test_the_memory_is_read_in_its_order_and_every_piece_is_done_once(monkeypatch):
    monkeypatch.setattr(arrays, "PIECE", 300)
    for weight in (weights(), np.ascontiguousarray(weights().T).T):
        for work in (to_int8, convert):
            done = []
            work(weight, "bfloat16", PieceRunner(done=done.append))
            assert all(piece.flags.c_contiguous and piece.size <= 300 for piece in done)
            starts = [piece.ctypes.data for piece in done]
            assert starts == sorted(set(starts))
            assert sum(piece.size for piece in done) == weight.size
