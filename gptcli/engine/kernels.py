"""One transformer block for one to a few tokens, and the head, compiled by Numba.

The limit of decoding is how fast memory gives the weights. `n` is the number of threads.
"""

import numpy as np
from numba import prange

from gptcli.engine.attention import attend
from gptcli.engine.compiled import inner, kernel
from gptcli.engine.numbers import widen
from gptcli.engine.products import ADD, STORE, dot, linear


@inner
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


@inner(parallel=True)
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
                approximate[j] = dot(x, W[j])


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
