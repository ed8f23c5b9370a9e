"""exp, erf, the activations, and LayerNorm against float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine.native.kernels import UNIT, activate, layer_norm

pytestmark = pytest.mark.usefixtures("variant")

Float64 = np.ndarray[Any, np.dtype[np.float64]]
erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Float64) -> Float64:
    with np.errstate(over="ignore"):
        y: Float64 = 1 / (1 + np.exp(-x))
    return y


ACTIVATIONS: dict[str, Callable[[Float64], Float64]] = {
    "identity": lambda x: x,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "swish": lambda x: x * sigmoid(0.7 * x),
}


def ulps(y: Any, expected: Float64) -> float:
    """Return the largest error in units of the last place of the expected values."""
    return float((np.abs(y - expected) / np.spacing(np.abs(expected).astype(np.float32))).max())


def test_exp_is_right_to_two_units_in_the_last_place() -> None:
    x = np.linspace(-103, 88.7, 400_001, dtype=np.float32)
    assert ulps(activate(x, "exp"), np.exp(x.astype(np.float64))) <= 2
    x = np.array([-np.inf, -1e30, -200, -0.0, 0, 88.8, 89.5, 200, 1e30, np.inf, np.nan], np.float32)
    expected = np.array([0, 0, 0, 1, 1, np.inf, np.inf, np.inf, np.inf, np.inf, np.nan], np.float32)
    assert np.array_equal(activate(x, "exp"), expected, equal_nan=True)


def test_erf_and_tanh_are_right_to_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-6, 6, 40_001), np.geomspace(1e-30, 1, 1001)]).astype(np.float32)
    assert ulps(activate(x, "erf"), erf(x.astype(np.float64))) <= 2
    assert ulps(activate(x, "tanh"), np.tanh(x.astype(np.float64))) <= 3
    special = np.array([-np.inf, np.inf, np.nan, 1e30, -1e30], np.float32)
    for name in ("erf", "tanh"):
        assert np.array_equal(
            activate(special, name), np.array([-1, 1, np.nan, 1, -1], np.float32), equal_nan=True
        )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_float64(name: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 20_001), [-1e4, 1e4, 0, 1e-20, -1e-20]]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = ACTIVATIONS[name](x.astype(np.float64))
    # The error is one of the input's, by the largest slope that x·σ(βx) has, and some roundings.
    bound = 8 * UNIT * (np.abs(expected) + np.minimum(np.abs(x), 3))
    assert (np.abs(activate(x, name, 0.7) - expected) <= bound).all()
    assert np.isnan(activate(np.full(3, np.nan, np.float32), name, 0.7)).all()
    assert activate(x[:5], name, 0.7).tolist() == activate(x, name, 0.7)[:5].tolist()


@pytest.mark.parametrize("unbiased", [False, True])
def test_layer_norm_is_that_of_float64(unbiased: bool) -> None:
    random = np.random.default_rng(0)
    for C in (2, 3, 15, 16, 33, 768):
        for T in (1, 5, 40):
            x = (random.standard_normal((T, C)) * 5 + 30).astype(np.float32)
            scale, shift = random.standard_normal((2, C)).astype(np.float32)
            wide = x.astype(np.float64)
            variance = wide.var(axis=1, keepdims=True, ddof=int(unbiased))
            expected = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(variance + 1e-5) * scale + shift
            y = layer_norm(x, scale, shift, 1e-5, unbiased)
            # The mean, 30, is known to some of its units; the deviation is about 5, or little for C = 2.
            sigma = np.sqrt(variance + 1e-5)
            bound = (
                16
                * UNIT
                * (1 + 30 / sigma)
                * (1 + np.abs((wide - 30) / sigma))
                * (np.abs(scale) + np.abs(shift))
            )
            assert (np.abs(y - expected) <= bound).all(), (C, T)
            for n_threads in (2, 3, 4):
                assert np.array_equal(layer_norm(x, scale, shift, 1e-5, unbiased, n_threads), y)
