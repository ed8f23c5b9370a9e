"""Attention over the cache against float64."""

import math
from typing import Any

import numpy as np
import pytest

from gptcli.engine.native.arrays import Array
from tests.engine.native.kernels import attend

pytestmark = pytest.mark.usefixtures("variant")

CASES = [(1, 0), (1, 1), (1, 33), (2, 5), (7, 0), (9, 40), (17, 3), (64, 0), (70, 31), (130, 7)]  # T, start


def naive(qkv: Array, start: int, cache: Array) -> Any:
    """Return softmax(q·kᵀ/√D)·v for the T new tokens over all S, in float64."""
    _, H, _, D = cache.shape
    T, S = len(qkv), start + len(qkv)
    q = qkv[:, : H * D].astype(np.float64).reshape(T, H, D)
    k, v = cache[:, :, :S].astype(np.float64)  # [H, S, D] each
    scores = np.einsum("thd,hsd->hts", q, k) / math.sqrt(D)
    scores[:, np.arange(S) > np.arange(start, S)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hts,hsd->thd", weights, v).reshape(T, H * D)


def make(T: int, start: int, H: int, D: int, capacity: int = 0, size: float = 1) -> tuple[Array, Array]:
    """Return qkv [T, 3C] and a cache filled up to `start`, NaN after it."""
    random = np.random.default_rng(T + D)
    cache = np.full((2, H, capacity or start + T + 3, D), np.nan, np.float32)
    cache[:, :, :start] = random.standard_normal((2, H, start, D)) * size
    return (random.standard_normal((T, 3 * H * D)) * size).astype(np.float32), cache


def check(qkv: Array, start: int, cache: Array, tolerance: float) -> None:
    """Compare with float64, over numbers of threads, and look at what is in the cache afterwards."""
    _, H, _, D = cache.shape
    T, old = len(qkv), cache.copy()
    y = attend(qkv, start, cache)
    expected = naive(qkv, start, cache)
    assert np.abs(y - expected).max() <= tolerance * max(1, np.abs(expected).max())
    new = qkv[:, H * D :].reshape(T, 2, H, D).transpose(1, 2, 0, 3)
    assert np.array_equal(cache[:, :, start : start + T], new)
    assert np.array_equal(cache[:, :, :start], old[:, :, :start])
    assert np.isnan(cache[:, :, start + T :]).all()
    for n_threads in (2, 3, 4):
        assert np.array_equal(attend(qkv, start, old.copy(), n_threads), y)


@pytest.mark.parametrize("D", [1, 2, 3, 8, 15, 16, 17, 48, 64, 80, 128, 255, 256])
def test_attention_is_that_of_float64(D: int) -> None:
    for T, start in CASES:
        qkv, cache = make(T, start, 3, D)
        check(qkv, start, cache, 3e-6)


def test_attention_over_a_long_context() -> None:
    for T, start in [(1, 1023), (16, 1500), (100, 2900)]:
        qkv, cache = make(T, start, 2, 64)
        check(qkv, start, cache, 3e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_softmax_survives_scores_of_ten_thousand(sign: int) -> None:
    # Whole numbers, so that scores of ±10⁴ are exact in float32, and only softmax is looked at.
    random, D, H = np.random.default_rng(0), 16, 2
    for T, start in [(1, 200), (5, 200), (70, 130)]:
        qkv = random.integers(-3, 4, (T, 3 * H * D)).astype(np.float32)
        cache = np.full((2, H, start + T, D), np.nan, np.float32)
        cache[:, :, :start] = random.integers(-3, 4, (2, H, start, D))
        qkv[:, : H * D : D] = 200 * sign
        cache[0, :, :start, 0] = 200
        qkv[:, H * D : 2 * H * D : D] = 200
        check(qkv, start, cache, 1e-5)


def test_nan_in_a_key_shows_in_the_tokens_that_see_it() -> None:
    for T in (1, 6, 70):
        qkv, cache = make(T, 20, 2, 16)
        cache[0, 1, 7, 3] = np.nan
        y = attend(qkv, 20, cache)
        assert np.isnan(y[:, 16:]).all()
        assert np.isfinite(y[:, :16]).all()
