"""Conversion between dtypes in NumPy, against PyTorch's."""

import numpy as np
import pytest
import torch

from gptcli.weights.arrays import convert

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def as_array(tensor):
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (257, 5), (1030, 2)], ids=str)
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_becomes_every_other_as_in_pytorch(stored, dtype, shape):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(1e5).to(DTYPES[stored])
    if numbers.ndim and len(numbers):
        numbers[0], numbers[-1] = float("inf"), float("nan")
    converted = convert(as_array(numbers), stored, dtype)
    expected = numbers.to(DTYPES[dtype])
    assert converted.dtype == as_array(expected).dtype
    widened = torch.from_numpy(converted.copy()).view(DTYPES[dtype]).double()
    assert torch.equal(widened.nan_to_num(nan=-1.0), expected.double().nan_to_num(nan=-1.0))


def test_a_transposed_view_keeps_its_order():
    numbers = np.arange(600.0, dtype=np.float32).reshape(300, 2)
    assert convert(numbers.T, "float32", "float16").T.flags.c_contiguous
    assert convert(numbers, "float32", "float32") is numbers
