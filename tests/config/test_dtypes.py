"""The table of dtypes, against PyTorch, NumPy and safetensors themselves."""

import numpy as np
import pytest
import torch
from safetensors.torch import _TYPES

from gptcli.cli.options import DTYPE_NAMES
from gptcli.config.cost import BYTES_PER_ELEMENT
from gptcli.config.dtypes import COMPUTE_DTYPES, DTYPES, SAFETENSORS_DTYPES, WEIGHT_DTYPES
from gptcli.runtime.torch_runtime import DTYPES as TORCH_DTYPES


@pytest.mark.parametrize("name", [name for name in DTYPES if hasattr(torch, name)])
def test_size_and_numpys_size_are_pytorchs(name):
    dtype = DTYPES[name]
    assert dtype.n_bytes == getattr(torch, name).itemsize
    assert dtype.numpy is None or np.dtype(dtype.numpy).itemsize == dtype.n_bytes


def test_names_are_those_of_safetensors():
    theirs = {name: str(dtype).removeprefix("torch.") for name, dtype in _TYPES.items()}
    ours = {name: SAFETENSORS_DTYPES[name].name for name in theirs if name in SAFETENSORS_DTYPES}
    assert ours == {name: theirs[name] for name in ours}
    assert {"F64", "F32", "F16", "BF16", "F8_E4M3", "I8", "U8", "BOOL"} <= set(ours)


def test_every_other_list_of_dtypes_comes_from_the_table():
    assert DTYPE_NAMES == ("auto", "float32", "bfloat16", "float16")
    assert {name: getattr(torch, name) for name in COMPUTE_DTYPES} == TORCH_DTYPES
    assert BYTES_PER_ELEMENT == {"float32": 4, "bfloat16": 2, "int8": 1}
    assert {*COMPUTE_DTYPES, *WEIGHT_DTYPES} <= set(DTYPES)
