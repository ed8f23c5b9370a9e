"""One transformer block for one to a few tokens, compiled by Numba: it reads each weight once, as it lies.

The limit of decoding is how fast memory gives the weights. A matrix is [O, I] here, outputs by inputs, as in
the model, and may lie by rows (the tutorial's files) or by columns (Hugging Face's); each order has its own
loop, so nothing is copied. `n` is the number of threads: every loop is cut into `n` equal parts.
"""

import math
from typing import Any

import numpy as np
from numba import njit, prange
from numba.extending import overload

from gptcli.engine.numbers import exp, narrow, widen

STORE, ADD, GELU_TANH, GELU, RELU, SILU = range(6)
ACTIVATION_CODES = {"gelu_tanh": GELU_TANH, "gelu": GELU, "relu": RELU, "silu": SILU, "identity": STORE}


def kernel(function: Any = None, **options: Any) -> Any:
    """`njit` with sums in any order, and the compiled code kept for the next process where that can be."""
    if function is None:
        return lambda function: kernel(function, **options)
    options |= {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "nogil": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for it: read-only installation and home
        return njit(**options)(function)


@kernel(inline="always")
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


@kernel
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


@kernel
def _dot(x, w):
    total = np.float32(0)
    for i in range(x.shape[0]):
        total += x[i] * widen(w[i])
    return total


@kernel
def _four_rows(x, W, j, out, k):
    """One token and four rows at once: four streams of memory, and a quarter of the ends of sums."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    w0, w1, w2, w3 = W[j], W[j + 1], W[j + 2], W[j + 3]
    for i in range(x.shape[0]):
        v = x[i]
        a += v * widen(w0[i])
        b += v * widen(w1[i])
        c += v * widen(w2[i])
        d += v * widen(w3[i])
    out[k], out[k + 1], out[k + 2], out[k + 3] = a, b, c, d


@kernel
def _four_tokens(x, t, w, out, j):
    """Four tokens and one row at once: each weight is widened once."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    x0, x1, x2, x3 = x[t], x[t + 1], x[t + 2], x[t + 3]
    for i in range(w.shape[0]):
        v = widen(w[i])
        a += x0[i] * v
        b += x1[i] * v
        c += x2[i] * v
        d += x3[i] * v
    out[t, j], out[t + 1, j], out[t + 2, j], out[t + 3, j] = a, b, c, d


@kernel(parallel=True)
def _linear_rows(x, weights, biases, scales, out, room, n, how):
    T = x.shape[0]
    for part in prange(n):
        first = 0
        for m in range(len(weights)):
            W = weights[m]  # [O, I]
            low, high = part * W.shape[0] // n, (part + 1) * W.shape[0] // n
            sums = room[part, : T * (high - low)].reshape(T, high - low)
            fours = (high - low) // 4 if T == 1 else 0
            for f in range(fours):
                _four_rows(x[0], W, low + 4 * f, sums[0], 4 * f)
            for j in range(low + 4 * fours, high):
                t = 0
                while t + 4 <= T:
                    _four_tokens(x, t, W[j], sums, j - low)
                    t += 4
                while t < T:
                    sums[t, j - low] = _dot(x[t], W[j])
                    t += 1
            for t in range(T):
                _write(sums[t], biases[m][low:high], scales[m][low:high], out[t], first + low, how)
            first += W.shape[0]


@kernel
def _add_four(x, i, W, sums):
    """Inputs i to i + 3 of W [I, O] into sums [T, O]: a sum is loaded and stored once for four."""
    w0, w1, w2, w3 = W[i], W[i + 1], W[i + 2], W[i + 3]
    for t in range(x.shape[0]):
        x0, x1, x2, x3 = x[t, i], x[t, i + 1], x[t, i + 2], x[t, i + 3]
        total = sums[t]
        for j in range(W.shape[1]):
            total[j] += (x0 * widen(w0[j]) + x1 * widen(w1[j])) + (x2 * widen(w2[j]) + x3 * widen(w3[j]))


@kernel
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


@kernel
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


@kernel(parallel=True)
def _linear_columns(x, W, bias, scale, out, room, n, how):
    T, O = x.shape[0], W.shape[1]  # W [I, O]
    for part in prange(n):
        sums = room[part, : T * O]
        sums[:] = 0
        _add_columns(x, W, part * W.shape[0] // n, (part + 1) * W.shape[0] // n, sums.reshape(T, O))
    for part in prange(n):
        low, high = part * O // n, (part + 1) * O // n
        for t in range(T):
            sums = room[0, t * O + low : t * O + high]
            for other in range(1, n):
                more = room[other, t * O + low : t * O + high]
                for j in range(high - low):
                    sums[j] += more[j]
            _write(sums, bias[low:high], scale[low:high], out[t], low, how)


def linear(_x, _weights, _biases, _scales, _out, _room, _n, _how):
    """out = activation(x·Wᵀ·scale + bias), or out += …, for matrices side by side: [T, I] → [T, sum of O]."""
    raise NotImplementedError("compiled code only")


@overload(linear)
def _linear(x, weights, biases, scales, out, room, n, how):
    if weights[0].layout == "C":

        def by_rows(x, weights, biases, scales, out, room, n, how):
            _linear_rows(x, weights, biases, scales, out, room, n, how)

        return by_rows

    def by_columns(x, weights, biases, scales, out, room, n, how):
        _linear_columns(x, weights[0].T, biases[0], scales[0], out, room, n, how)

    return by_columns


def run_linear(x: Any, matrices: Any, out: Any, room: Any, n: int) -> None:
    """`linear` from Python, to have its loop compiled."""
    weights, biases, scales = matrices
    if weights[0].flags.c_contiguous:
        _linear_rows(x, weights, biases, scales, out, room, n, STORE)
    else:
        _linear_columns(x, weights[0].T, biases[0], scales[0], out, room, n, STORE)


@kernel
def normalize(x, scale, shift, eps, unbiased, out):
    """LayerNorm: [T, C] → [T, C]."""
    T, C = x.shape
    for t in range(T):
        mean = np.float32(0)
        for i in range(C):
            mean += x[t, i]
        mean /= np.float32(C)
        variance = np.float32(0)
        for i in range(C):
            variance += (x[t, i] - mean) * (x[t, i] - mean)
        factor = np.float32(1) / np.sqrt(variance / np.float32(C - unbiased) + np.float32(eps))
        for i in range(C):
            out[t, i] = (x[t, i] - mean) * factor * widen(scale[i]) + widen(shift[i])


@kernel
def _attend_head(q, keys, values, S, scores, out):
    """One query [D] over S keys and values [S, D]."""
    D = q.shape[0]
    most = np.float32(-np.inf)
    for s in range(S):
        score = np.float32(0)
        for d in range(D):
            score += q[d] * widen(keys[s, d])
        scores[s] = score
        most = max(most, score)
    total = np.float32(0)
    out[:] = 0
    for s in range(S):
        scores[s] = exp(scores[s] - most)
        total += scores[s]
    for s in range(S):
        p = scores[s]
        for d in range(D):
            out[d] += p * widen(values[s, d])
    for d in range(D):
        out[d] /= total


@kernel(parallel=True)
def attend(qkv, cache, start, out, scores, n):
    """T tokens' qkv [T, 3C] into a layer's cache [2, H, capacity, D] behind `start`; attention [T, C] out."""
    _, H, _, D = cache.shape
    T, C = out.shape
    root = np.float32(1) / np.sqrt(np.float32(D))
    for part in prange(n):
        for h in range(part * H // n, (part + 1) * H // n):
            keys, values = cache[0, h], cache[1, h]  # [capacity, D] each
            for t in range(T):
                for d in range(D):
                    keys[start + t, d] = narrow(qkv[t, C + h * D + d], cache)
                    values[start + t, d] = narrow(qkv[t, 2 * C + h * D + d], cache)
                    qkv[t, h * D + d] *= root
                q = qkv[t, h * D : (h + 1) * D]
                _attend_head(q, keys, values, start + t + 1, scores[part], out[t, h * D : (h + 1) * D])


@kernel
def block(x, norm1, norm2, qkv, project, up, down, cache, start, buffers, n, activation, eps, unbiased):
    """A transformer block on x [T, C], in place. A linear is (weights, biases, scales), each a tuple."""
    normed, mixed, fused, hidden, room, scores = buffers  # [T, C] twice, [T, 3C], [T, F]; by thread
    normalize(x, norm1[0], norm1[1], eps, unbiased, normed)
    linear(normed, qkv[0], qkv[1], qkv[2], fused, room, n, STORE)
    attend(fused, cache, start, mixed, scores, n)
    linear(mixed, project[0], project[1], project[2], x, room, n, ADD)
    normalize(x, norm2[0], norm2[1], eps, unbiased, normed)
    linear(normed, up[0], up[1], up[2], hidden, room, n, activation)
    linear(hidden, down[0], down[1], down[2], x, room, n, ADD)


@kernel(parallel=True)
def _settle(x, approximate, radius, W, margin, n):
    """Make exact whatever may be the largest: approximate [V] for x [C], each within radius [V] · |x|.

    What stays approximate is smaller than the largest by more than `margin` times the largest magnitude.
    """
    C, V = x.shape[0], approximate.shape[0]
    length = np.float32(0)
    for i in range(C):
        length += x[i] * x[i]
    length = np.sqrt(length) * np.float32(1.00001)
    lows, magnitudes = np.zeros(n * 16, np.float32), np.zeros(n * 16, np.float32)  # a cache line a thread
    for part in prange(n):
        low, magnitude = np.float32(-np.inf), np.float32(1)
        for j in range(part * V // n, (part + 1) * V // n):
            low = max(low, approximate[j] - radius[j] * length)
            magnitude = max(magnitude, abs(approximate[j]) + radius[j] * length)
        lows[part * 16], magnitudes[part * 16] = low, magnitude
    low, magnitude = lows[0], magnitudes[0]
    for part in range(1, n):
        low, magnitude = max(low, lows[part * 16]), max(magnitude, magnitudes[part * 16])
    low -= np.float32(margin) * magnitude
    for part in prange(n):
        for j in range(part * V // n, (part + 1) * V // n):
            if approximate[j] + radius[j] * length >= low:
                approximate[j] = _dot(x, W[j])


@kernel
def quick_head(x, norm, small, radius, W, margin, logits, buffers, n, eps, unbiased):
    """As `head`, but a logit is exact only where it may be the largest; `small` is W in int8."""
    normed, _, _, _, room, _ = buffers
    normalize(x, norm[0], norm[1], eps, unbiased, normed)
    linear(normed, small[0], small[1], small[2], logits, room, n, STORE)
    for t in range(x.shape[0]):
        _settle(normed[t], logits[t], radius, W, margin, n)


@kernel
def head(x, norm, weights, logits, buffers, n, eps, unbiased):
    """Final norm and output head: [T, C] → logits [T, V]."""
    normed, _, _, _, room, _ = buffers
    normalize(x, norm[0], norm[1], eps, unbiased, normed)
    linear(normed, weights[0], weights[1], weights[2], logits, room, n, STORE)
