"""Products of one to a few tokens with a matrix, which is read once, as it lies.

A matrix is [O, I] here, outputs by inputs, as in the model, and may lie by rows (the tutorial's files) or by
columns (Hugging Face's); each order has its own loop, so nothing is copied. `n` is the number of threads:
every loop is cut into `n` equal parts.
"""

import math

import numpy as np
from numba import prange
from numba.extending import overload

from gptcli.engine.compiled import inner
from gptcli.engine.numbers import exp, widen
from gptcli.engine.tile import (
    COLUMNS,
    LANES,
    TOKENS,
    call_narrow_tile,
    call_rows_tile,
    call_wide_tile,
    n_rows_of,
)

STORE, ADD, GELU_TANH, GELU, RELU, SILU = range(6)
# From so many tokens on, tiles are sooner than whole rows; so many inputs go by before the next tile.
TILED_TOKENS, TILED_INPUTS = 4, 64
ACTIVATION_CODES = {"gelu_tanh": GELU_TANH, "gelu": GELU, "relu": RELU, "silu": SILU, "identity": STORE}


@inner(inline="always")
def _finish(value, how):
    """A feed-forward's activation, or nothing."""
    if how == GELU_TANH:
        # ½·(1 + tanh(u)) is 1 / (1 + e⁻²ᵘ)
        twice = np.float32(1.5957691216) * (value + np.float32(0.044715) * value * value * value)
        return value / (np.float32(1) + exp(-twice))
    if how == GELU:
        return np.float32(0.5) * value * (np.float32(1) + math.erf(value * np.float32(0.7071067812)))
    if how == RELU:
        return max(value, np.float32(0))
    if how == SILU:
        return value / (np.float32(1) + exp(-value))
    return value


@inner
def _write(sums, bias, scale, out, first, how):
    """Scale, bias, activation or residual for neighbouring outputs, into `out` from `first` on."""
    n = sums.shape[0]
    target = out[first : first + n]
    if scale.shape[0]:
        for j in range(n):
            sums[j] *= scale[j]
    if bias.shape[0]:
        for j in range(n):
            sums[j] += bias[j]
    if how == ADD:
        for j in range(n):
            target[j] += sums[j]
    elif how == GELU_TANH:  # apart, so that it is computed for many at once
        for j in range(n):
            target[j] = _finish(sums[j], GELU_TANH)
    else:
        for j in range(n):
            target[j] = _finish(sums[j], how)


@inner
def dot(x, w):
    total = np.float32(0)
    for i in range(x.shape[0]):
        total += x[i] * widen(w[i])
    return total


@inner
def dot_rows(x, W, low, high, sums):
    """x · W[low:high]ᵀ into sums, for TOKENS tokens or fewer."""
    T, I = x.shape
    n_rows, whole = n_rows_of(T), I // LANES * LANES
    j = low
    while j + n_rows <= high:
        call_rows_tile(x, 0, W, j, 0, sums, j - low, whole, 0)
        for i in range(whole, I):
            for t in range(T):
                for r in range(n_rows):
                    sums[t, j - low + r] += x[t, i] * widen(W[j + r, i])
        j += n_rows
    while j < high:
        for t in range(T):
            sums[t, j - low] = dot(x[t], W[j])
        j += 1


@inner
def _some_rows(x, W, low, high, bias, scale, out, first, room, how):
    """Outputs `low` to `high` of W [O, I], into `out` from `first` on."""
    T = x.shape[0]
    sums = room[: T * (high - low)].reshape(T, high - low)
    for t in range(0, T, TOKENS):
        dot_rows(x[t : t + TOKENS], W, low, high, sums[t : t + TOKENS])
    for t in range(T):
        _write(sums[t], bias[low:high], scale[low:high], out[t], first, how)


@inner(parallel=True)
def _linear_rows(x, weights, biases, scales, out, room, n, how):
    for part in prange(n):
        first = 0
        for m in range(len(weights)):
            O = weights[m].shape[0]
            low, high = part * O // n, (part + 1) * O // n
            _some_rows(x, weights[m], low, high, biases[m], scales[m], out, first + low, room[part], how)
            first += O


@inner
def _add_four(x, i, W, sums):
    """Inputs i to i + 3 of W [I, O] into sums [T, O]: a sum is loaded and stored once for four."""
    w0, w1, w2, w3 = W[i], W[i + 1], W[i + 2], W[i + 3]
    for t in range(x.shape[0]):
        x0, x1, x2, x3 = x[t, i], x[t, i + 1], x[t, i + 2], x[t, i + 3]
        total = sums[t]
        for j in range(W.shape[1]):
            total[j] += (x0 * widen(w0[j]) + x1 * widen(w1[j])) + (x2 * widen(w2[j]) + x3 * widen(w3[j]))


@inner
def _add_eight(x, i, W, sums):
    """Inputs i to i + 7, likewise."""
    w0, w1, w2, w3 = W[i], W[i + 1], W[i + 2], W[i + 3]
    w4, w5, w6, w7 = W[i + 4], W[i + 5], W[i + 6], W[i + 7]
    for t in range(x.shape[0]):
        x0, x1, x2, x3 = x[t, i], x[t, i + 1], x[t, i + 2], x[t, i + 3]
        x4, x5, x6, x7 = x[t, i + 4], x[t, i + 5], x[t, i + 6], x[t, i + 7]
        total = sums[t]
        for j in range(W.shape[1]):
            total[j] += (
                (x0 * widen(w0[j]) + x1 * widen(w1[j])) + (x2 * widen(w2[j]) + x3 * widen(w3[j]))
            ) + ((x4 * widen(w4[j]) + x5 * widen(w5[j])) + (x6 * widen(w6[j]) + x7 * widen(w7[j])))


@inner
def _add_columns(x, W, low, high, sums):
    """Inputs `low` to `high` of W [I, O] into sums [T, O].

    Eight at a time, but four in float32: there a row has 12 KiB, so that rows begin at one place of a
    page, and eight such streams push each other out of the first cache.
    """
    T, O = sums.shape
    i = low
    if W.itemsize < 4:
        while i + 8 <= high:
            _add_eight(x, i, W, sums)
            i += 8
    while i + 4 <= high:
        _add_four(x, i, W, sums)
        i += 4
    while i < high:
        for t in range(T):
            for j in range(O):
                sums[t, j] += x[t, i] * widen(W[i, j])
        i += 1


@inner
def _sum_up(room, T, O, low, high, n, bias, scale, out, how):
    """Outputs `low` to `high` of the n threads' sums [T, O] in `room`."""
    for t in range(T):
        sums = room[0, t * O + low : t * O + high]
        for other in range(1, n):
            more = room[other, t * O + low : t * O + high]
            for j in range(high - low):
                sums[j] += more[j]
        _write(sums, bias[low:high], scale[low:high], out[t], low, how)


@inner(parallel=True)
def _linear_columns(x, W, bias, scale, out, room, n, how):
    T, I, O = x.shape[0], W.shape[0], W.shape[1]  # W [I, O]
    for part in prange(n):
        room[part, : T * O] = 0
        _add_columns(x, W, part * I // n, (part + 1) * I // n, room[part, : T * O].reshape(T, O))
    for part in prange(n):
        _sum_up(room, T, O, part * O // n, (part + 1) * O // n, n, bias, scale, out, how)


@inner
def add_products(x, W, i, n_inputs, j, end, sums, k, ahead):
    """x[:, i : i + n_inputs] · W[i : i + n_inputs, j:end] to sums[:, k:], for TOKENS tokens or fewer.

    By tiles as wide as they come; weights are asked of memory `ahead` rows further down.
    """
    while j + COLUMNS <= end:
        call_wide_tile(x, i, W, i, j, sums, k, n_inputs, ahead)
        j, k = j + COLUMNS, k + COLUMNS
    while j + LANES <= end:
        call_narrow_tile(x, i, W, i, j, sums, k, n_inputs, ahead)
        j, k = j + LANES, k + LANES
    if j < end:
        for row in range(i, i + n_inputs):
            for t in range(x.shape[0]):
                for c in range(end - j):
                    sums[t, k + c] += x[t, row] * widen(W[row, j + c])


@inner
def _some_tiles(x, W, low, high, bias, scale, out, room, how):
    """Outputs `low` to `high` of W [I, O]."""
    T, I = x.shape[0], W.shape[0]
    sums = room[: T * (high - low)].reshape(T, high - low)
    sums[:] = 0
    for i in range(0, I, TILED_INPUTS):
        n_inputs = min(TILED_INPUTS, I - i)
        ahead = TILED_INPUTS if i + n_inputs < I else 0
        for t in range(0, T, TOKENS):
            add_products(x[t : t + TOKENS], W, i, n_inputs, low, high, sums[t : t + TOKENS], 0, ahead)
    for t in range(T):
        _write(sums[t], bias[low:high], scale[low:high], out[t], low, how)


@inner(parallel=True)
def _linear_tiles(x, W, bias, scale, out, room, n, how):
    """As `_linear_columns`, for several tokens: a thread has some of the outputs, tile by tile."""
    O = W.shape[1]
    n_tiles = O // COLUMNS
    for part in prange(n):
        low = part * n_tiles // n * COLUMNS
        high = (part + 1) * n_tiles // n * COLUMNS if part < n - 1 else O
        _some_tiles(x, W, low, high, bias, scale, out, room[part], how)


def linear(_x, _weights, _biases, _scales, _out, _room, _n, _how):
    """out = activation(x·Wᵀ·scale + bias), or out += …, for matrices side by side: [T, I] → [T, sum of O]."""
    raise NotImplementedError("compiled code only")


@overload(linear, inline="always")
def _linear(x, weights, biases, scales, out, room, n, how):
    if weights[0].layout == "C":

        def by_rows(x, weights, biases, scales, out, room, n, how):
            _linear_rows(x, weights, biases, scales, out, room, n, how)

        return by_rows

    def by_columns(x, weights, biases, scales, out, room, n, how):
        W, bias, scale = weights[0].T, biases[0], scales[0]
        if x.shape[0] < TILED_TOKENS:
            _linear_columns(x, W, bias, scale, out, room, n, how)
        else:
            _linear_tiles(x, W, bias, scale, out, room, n, how)

    return by_columns
