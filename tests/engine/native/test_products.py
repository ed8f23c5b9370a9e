"""Matrix products of the native kernels against float64."""

import numpy as np
import pytest

from gptcli.engine.native.arrays import Array
from tests.engine.native.kernels import UNIT, activate, linear, stored, widened

pytestmark = pytest.mark.usefixtures("variant")

KINDS = [(dtype, order) for dtype in ("float32", "uint16", "float16") for order in ("rows", "columns")]
KINDS.append(("int8", "rows"))
SIZES = [(1, 1), (3, 5), (16, 48), (17, 49), (95, 47), (97, 145), (200, 130), (389, 60)]  # inputs, outputs
TOKENS = [*range(1, 18), 63, 64, 70]


def make_weight(dtype: str, order: str, n_inputs: int, n_outputs: int, seed: int = 0) -> Array:
    """Return a weight [O, I] at an odd address, inside a wider matrix of NaN (127 in int8)."""
    random = np.random.default_rng(seed)
    shape = (n_inputs, n_outputs) if order == "columns" else (n_outputs, n_inputs)
    values = random.standard_normal(shape).astype(np.float32)
    inner = stored(np.rint(values * 40).clip(-127, 127) if dtype == "int8" else values, dtype)
    wide = stored(
        np.full((shape[0] + 2, shape[1] + 5), 127 if dtype == "int8" else np.nan, np.float32), dtype
    )
    memory = np.zeros(wide.nbytes + 1, np.uint8)
    whole = np.frombuffer(memory.data, wide.dtype, wide.size, offset=1).reshape(wide.shape)
    whole[:] = wide
    part = whole[1:-1, 3:-2]
    part[:] = inner
    return part.T if order == "columns" else part


@pytest.mark.parametrize(("dtype", "order"), KINDS)
def test_products_are_those_of_float64(dtype: str, order: str) -> None:
    random = np.random.default_rng(1)
    for n_inputs, n_outputs in SIZES:
        weight = make_weight(dtype, order, n_inputs, n_outputs)
        scale = random.random(n_outputs, np.float32) + 0.1 if dtype == "int8" else None
        W = widened(weight) * (1 if scale is None else scale.astype(np.float64)[:, None])
        for T in TOKENS:
            x = random.standard_normal((T, n_inputs)).astype(np.float32)
            bias = random.standard_normal(n_outputs).astype(np.float32) if T % 2 else None
            # A sum of n products is off by less than n + 1 units of its magnitudes; 2 more: scale, bias.
            added = np.zeros(n_outputs) if bias is None else bias.astype(np.float64)
            bound = (n_inputs + 3) * UNIT * (np.abs(x) @ np.abs(W).T + np.abs(added))
            y = linear(x, weight, bias=bias, scale=scale)
            assert (np.abs(y - (x.astype(np.float64) @ W.T + added)) <= bound).all(), (n_inputs, n_outputs, T)


@pytest.mark.parametrize(("dtype", "order"), KINDS)
def test_threads_and_neighbors_do_not_change_a_bit(dtype: str, order: str) -> None:
    for n_inputs, n_outputs in [(200, 130), (97, 500), (300, 1)]:
        weight = make_weight(dtype, order, n_inputs, n_outputs)
        scale = np.full(n_outputs, 0.5, np.float32) if dtype == "int8" else None
        for T in (1, 2, 9, 17, 64, 70):
            x = np.random.default_rng(T).standard_normal((T, n_inputs)).astype(np.float32)
            alone = linear(x, weight, scale=scale)
            for n_threads in (2, 3, 4):
                assert np.array_equal(linear(x, weight, scale=scale, n_threads=n_threads), alone)
            one = np.concatenate([linear(x[t : t + 1], weight, scale=scale) for t in range(min(T, 17))])
            if T < 64 or order == "columns":  # many tokens by rows are summed in another order
                assert np.array_equal(one, alone[:17]), "a token by itself gives other bits"


def test_residual_is_added_after_the_activation() -> None:
    random = np.random.default_rng(0)
    for order in ("rows", "columns"):
        weight = make_weight("float32", order, 40, 70)
        for T in (1, 3, 70):
            x, residual = (random.standard_normal((T, n)).astype(np.float32) for n in (40, 70))
            product = linear(x, weight)
            y = linear(x, weight, activation="gelu", residual=residual)
            assert np.array_equal(y, activate(product, "gelu") + residual)


@pytest.mark.parametrize(("dtype", "order"), KINDS[:-1])
def test_nan_and_infinity_go_through(dtype: str, order: str) -> None:
    for T in (1, 3, 9, 70):
        weight = make_weight(dtype, order, 50, 60).copy(order="K")
        weight[7, 3] = stored(np.array([np.inf], np.float32), dtype)[0]
        weight[11, 49] = stored(np.array([np.nan], np.float32), dtype)[0]
        x = np.random.default_rng(0).standard_normal((T, 50)).astype(np.float32)
        x[T - 1, 5] = -np.inf
        with np.errstate(invalid="ignore"):
            expected = x.astype(np.float64) @ widened(weight).T
        y = linear(x, weight)
        assert np.array_equal(np.isnan(y), np.isnan(expected))
        assert np.array_equal(np.isinf(y), np.isinf(expected))


def test_every_float16_and_bfloat16_is_widened_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 1)  # [O, 1]
    for weight in (bits, bits.view(np.float16)):
        y = linear(np.ones((1, 1), np.float32), weight)[0]
        with np.errstate(invalid="ignore"):
            assert np.array_equal(y, widened(weight)[:, 0].astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(("dtype", "order"), KINDS)
def test_wide_matrices_are_cut_into_parts_that_fit(dtype: str, order: str) -> None:
    weight = make_weight(dtype, order, 20, 5000)
    scale = np.ones(5000, np.float32) if dtype == "int8" else None
    x = np.random.default_rng(0).standard_normal((63, 20)).astype(np.float32)
    expected = x.astype(np.float64) @ widened(weight).T
    for T in (1, 2, 40, 63):
        y = linear(x[:T], weight, scale=scale, n_threads=2)
        assert (np.abs(y - expected[:T]) <= 23 * UNIT * (np.abs(x[:T]) @ np.abs(widened(weight)).T)).all()
