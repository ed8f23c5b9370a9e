"""Attention of new tokens over a cache of keys and values: of one to a few, and of a prompt's many."""

import numpy as np
from numba import prange

from gptcli.engine.compiled import inner, kernel
from gptcli.engine.numbers import exp, narrow, widen
from gptcli.engine.products import add_products, dot_rows
from gptcli.engine.tile import LANES, TOKENS

VALUES_AHEAD = 32  # rows that are asked of memory before they are wanted


@inner
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


@inner
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


@inner
def _store(qkv, h, cache, start):
    """A head's keys and values out of qkv [T, 3C] into a layer's cache [2, H, capacity, D] behind `start`."""
    T, C, D = qkv.shape[0], qkv.shape[1] // 3, cache.shape[3]
    for t in range(T):
        for d in range(D):
            cache[0, h, start + t, d] = narrow(qkv[t, C + h * D + d], cache)
            cache[1, h, start + t, d] = narrow(qkv[t, 2 * C + h * D + d], cache)


@inner
def _attend_head(qkv, h, cache, start, out, room):
    T, D = qkv.shape[0], cache.shape[3]
    _store(qkv, h, cache, start)
    for t in range(0, T, TOKENS):
        end = min(t + TOKENS, T)
        scores = room[: (end - t) * (start + end)].reshape(end - t, start + end)
        dot_rows(qkv[t:end, h * D : (h + 1) * D], cache[0, h], 0, start + end, scores)
        _mix(scores, start + t, cache[1, h], out[t:end, h * D : (h + 1) * D])


@inner(parallel=True)
def attend(qkv, cache, start, out, room, n):
    """T tokens' qkv [T, 3C] into a layer's cache [2, H, capacity, D] behind `start`; attention [T, C] out."""
    H = cache.shape[1]
    for part in prange(n):
        for h in range(part * H // n, (part + 1) * H // n):
            _attend_head(qkv, h, cache, start, out, room[part])


@inner
def _turn(keys, S, turned):
    """Keys [S or more, D] → [D, S or more], a line of memory in each row at a time."""
    for first in range(0, S, LANES):
        for d in range(keys.shape[1]):
            for s in range(first, min(first + LANES, S)):
                turned[d, s] = widen(keys[s, d])


@kernel(parallel=True)
def keep(qkv, cache, start, turned, n):
    """T tokens' keys and values out of qkv [T, 3C] into a layer's cache [2, H, capacity, D] behind `start`.

    All S keys also go into `turned` [H, D, S or more], a column each, as products with many tokens read them.
    """
    H = cache.shape[1]
    for part in prange(n):
        for h in range(part * H // n, (part + 1) * H // n):
            _store(qkv, h, cache, start)
            _turn(cache[0, h], start + qkv.shape[0], turned[h])


@inner
def _attend_some(qkv, h, first, cache, start, turned, out, room):
    """TOKENS or fewer of a head's queries, from `first` on: what is hidden from all is not computed."""
    T, D = qkv.shape[0], cache.shape[3]
    end = min(first + TOKENS, T)
    width = (start + end + LANES - 1) // LANES * LANES
    scores = room[: (end - first) * width].reshape(end - first, width)
    scores[:] = 0
    add_products(qkv[first:end, h * D : (h + 1) * D], turned[h], 0, D, 0, width, scores, 0, 0)
    _mix(scores, start + first, cache[1, h], out[first:end, h * D : (h + 1) * D])


@kernel(parallel=True)
def attend_many(qkv, cache, start, turned, out, room, n):
    """Attention [T, C] of T tokens in qkv [T, 3C], behind `start` others; `keep` has their keys and values.

    Some tokens of a head at a time, so that a key, and a value, is loaded once for all of them: scores
    [tokens, S] in one product, softmax, another product.
    """
    H, n_groups = cache.shape[1], (qkv.shape[0] + TOKENS - 1) // TOKENS
    for part in prange(n):
        for item in range(part * H * n_groups // n, (part + 1) * H * n_groups // n):
            first = item % n_groups * TOKENS
            _attend_some(qkv, item // n_groups, first, cache, start, turned, out, room[part])
