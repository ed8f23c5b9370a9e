"""Attention of new tokens over a cache of keys and values: of one to a few, and of a prompt's many."""

import numpy as np
from numba import prange

from gptcli.engine.compiled import kernel
from gptcli.engine.numbers import exp, narrow, widen
from gptcli.engine.products import add_products
from gptcli.engine.tile import TOKENS
from gptcli.engine.vectors import LANES


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


@kernel(parallel=True)
def attend_many(qkv, cache, start, turned, out, room, n):
    """Attention [T, C] of T tokens in qkv [T, 3C], behind `start` others; `keep` has their keys and values.

    Some tokens of a head at a time, so that a key, and a value, is loaded once for all of them, and what is
    hidden from all is not computed: scores [tokens, S] in one product, softmax, another product.
    """
    _, H, _, D = cache.shape
    T = out.shape[0]
    n_groups = (T + TOKENS - 1) // TOKENS
    root = np.float32(1) / np.sqrt(np.float32(D))
    for part in prange(n):
        totals = np.empty(TOKENS, np.float32)
        for item in range(part * H * n_groups // n, (part + 1) * H * n_groups // n):
            h, first = item // n_groups, item % n_groups * TOKENS
            end = min(first + TOKENS, T)
            S = start + end
            width = (S + LANES - 1) // LANES * LANES
            scores = room[part, : (end - first) * width].reshape(end - first, width)
            scores[:] = 0
            add_products(qkv[first:end, h * D : (h + 1) * D], turned[h], 0, D, 0, width, scores, 0)
            for t in range(end - first):
                totals[t] = _soften(scores[t], start + first + t + 1, root)
            mixed = out[first:end, h * D : (h + 1) * D]
            mixed[:] = 0
            add_products(scores, cache[1, h], 0, S, 0, D, mixed, 0)
            for t in range(end - first):
                for d in range(D):
                    mixed[t, d] /= totals[t]
