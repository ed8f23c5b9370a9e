"""Attention of new tokens over a cache of keys and values: of one to a few, and of a prompt's many."""

import numpy as np
from numba import prange

from gptcli.engine.compiled import kernel
from gptcli.engine.numbers import exp, narrow, widen
from gptcli.engine.products import add_products, dot_rows
from gptcli.engine.tile import TOKENS
from gptcli.engine.vectors import LANES

VALUES_AHEAD = 32  # rows that are asked of memory before they are wanted


@kernel
def _soften(scores, S, root):
    """The first S of a token's scores to exp(score · root - the largest), the rest to 0; their sum."""
    most = np.float32(-np.inf)
    for s in range(S):
        scores[s] *= root
        most = max(most, scores[s])
    total = np.float32(0)
    for s in range(S):
        scores[s] = exp(scores[s] - most)
        total += scores[s]
    scores[S:] = 0
    return total


@kernel
def _mix(scores, start, values, out):
    """Scores [T, S or more], behind `start` others, to probabilities; values [S, D] by them, [T, D] out."""
    T, D = out.shape
    root = np.float32(1) / np.sqrt(np.float32(D))
    totals = np.empty(T, np.float32)
    for t in range(T):
        totals[t] = _soften(scores[t], start + t + 1, root)
    out[:] = 0
    add_products(scores, values, 0, start + T, 0, D, out, 0, VALUES_AHEAD)
    for t in range(T):
        for d in range(D):
            out[t, d] /= totals[t]


@kernel(parallel=True)
def attend(qkv, cache, start, out, room, n):
    """T tokens' qkv [T, 3C] into a layer's cache [2, H, capacity, D] behind `start`; attention [T, C] out."""
    _, H, _, D = cache.shape
    T, C = out.shape
    for part in prange(n):
        scores = room[part, : T * (start + T)].reshape(T, start + T)
        for h in range(part * H // n, (part + 1) * H // n):
            keys, values = cache[0, h], cache[1, h]  # [capacity, D] each
            for t in range(T):
                for d in range(D):
                    keys[start + t, d] = narrow(qkv[t, C + h * D + d], cache)
                    values[start + t, d] = narrow(qkv[t, 2 * C + h * D + d], cache)
            for t in range(0, T, TOKENS):
                some = slice(t, min(t + TOKENS, T))
                dot_rows(qkv[some, h * D : (h + 1) * D], keys, 0, start + T, scores[some])
                _mix(scores[some], start + t, values, out[some, h * D : (h + 1) * D])


@kernel(parallel=True)
def keep(qkv, cache, start, turned, n):
    """T tokens' keys and values out of qkv [T, 3C] into a layer's cache [2, H, capacity, D] behind `start`.

    All S keys also go into `turned` [H, D, S or more], a column each, as products with many tokens read them.
    """
    _, H, _, D = cache.shape
    T, C = qkv.shape[0], H * D
    for part in prange(n):
        for h in range(part * H // n, (part + 1) * H // n):
            keys, values = cache[0, h], cache[1, h]  # [capacity, D] each
            for t in range(T):
                for d in range(D):
                    keys[start + t, d] = narrow(qkv[t, C + h * D + d], cache)
                    values[start + t, d] = narrow(qkv[t, 2 * C + h * D + d], cache)
            for first in range(0, start + T, LANES):  # a line of memory in each column at a time
                for d in range(D):
                    for s in range(first, min(first + LANES, start + T)):
                        turned[h, d, s] = widen(keys[s, d])


@kernel(parallel=True)
def attend_many(qkv, cache, start, turned, out, room, n):
    """Attention [T, C] of T tokens in qkv [T, 3C], behind `start` others; `keep` has their keys and values.

    Some tokens of a head at a time, so that a key, and a value, is loaded once for all of them, and what is
    hidden from all is not computed: scores [tokens, S] in one product, softmax, another product.
    """
    _, H, _, D = cache.shape
    T = out.shape[0]
    n_groups = (T + TOKENS - 1) // TOKENS
    for part in prange(n):
        for item in range(part * H * n_groups // n, (part + 1) * H * n_groups // n):
            h, first = item // n_groups, item % n_groups * TOKENS
            end = min(first + TOKENS, T)
            width = (start + end + LANES - 1) // LANES * LANES
            scores = room[part, : (end - first) * width].reshape(end - first, width)
            scores[:] = 0
            add_products(qkv[first:end, h * D : (h + 1) * D], turned[h], 0, D, 0, width, scores, 0)
            _mix(scores, start + first, cache[1, h], out[first:end, h * D : (h + 1) * D])
