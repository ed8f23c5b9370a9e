"""One native kernel at a time, on NumPy arrays; and what the float64 references need."""

import ctypes
from typing import Any

import numpy as np

from gptcli.engine.native import library
from gptcli.engine.native.arrays import Array, matrix, norm, pointer, widen

UNIT = 2.0**-24  # of rounding, in float32
CODES = {name: code for code, name in enumerate((*library.ACTIVATIONS, "exp", "erf"))}


def linear(
    x: Array,
    weight: Array,
    *,
    bias: Array | None = None,
    scale: Array | None = None,
    activation: str = "identity",
    beta: float = 1.0,
    residual: Array | None = None,
    n_threads: int = 1,
) -> Array:  # [T, O]
    """Return activation(x·Wᵀ·scale + bias) + residual for x [T, I] and W [O, I]."""
    kernels, (O, I) = library.load_library(), weight.shape  # noqa: E741 - matrices are [O, I]
    m = matrix(weight, (O, I), "weight", bias, scale)
    scratch = np.full(kernels.gptcli_linear_bytes(ctypes.byref(m), n_threads) // 4, np.nan, np.float32)
    out = np.full((len(x) + 1, O), 7.5, np.float32)
    if residual is not None:
        out[:-1] = residual
    kernels.gptcli_linear(
        ctypes.byref(m),
        x.ctypes.data,
        len(x),
        CODES[activation],
        beta,
        residual is not None,
        out.ctypes.data,
        n_threads,
        scratch.ctypes.data,
    )
    assert (out[-1] == 7.5).all(), "written after the end"
    return out[:-1]


def layer_norm(x: Array, scale: Array, shift: Array, eps: float, unbiased: bool, n_threads: int = 1) -> Array:
    """Return the LayerNorm of x [T, C]."""
    out, described = np.empty_like(x), norm(scale, shift)
    library.load_library().gptcli_layer_norm(
        x.ctypes.data, *x.shape, ctypes.byref(described), eps, unbiased, out.ctypes.data, n_threads
    )
    return out


def attend(qkv: Array, start: int, cache: Array, n_threads: int = 1) -> Array:  # [T, C]
    """Store keys and values of qkv [T, 3C] in a cache [2, H, capacity, D]; return attention."""
    kernels, (_, H, capacity, D), T = library.load_library(), cache.shape, len(qkv)
    assert start + T <= capacity
    scratch = np.full(kernels.gptcli_attend_bytes(T, start + T, D, n_threads) // 4, np.nan, np.float32)
    out = np.empty((T, H * D), np.float32)
    kernels.gptcli_attend(
        pointer(qkv), T, start, H, D, pointer(cache), capacity, pointer(out), n_threads, pointer(scratch)
    )
    return out


def activate(values: Array, name: str, beta: float = 1.0) -> Array:
    """Return an activation, exp or erf of float32 values."""
    out = values.copy()
    library.load_library().gptcli_activate(out.ctypes.data, out.size, CODES[name], beta)
    return out


def stored(values: Array, dtype: str) -> Array:
    """Return float32 values rounded to a stored dtype; bfloat16 is uint16, int8 takes whole numbers."""
    if dtype == "uint16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return values.astype(dtype)


def widened(weight: Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return stored numbers as float64."""
    return (weight if weight.dtype == np.int8 else widen(weight)).astype(np.float64)
