"""Scoring: the log-probabilities that a model gives to the tokens of a text, window by window.

Source of the windows: transformers' guide "Perplexity of fixed-length models".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from gptcli.decode.engine import Array, Engine, ForwardRequest
from gptcli.decode.select import not_finite_error

# The most tokens with logits in one forward pass: for GPT-2's vocabulary that is 51 MB.
CHUNK_TOKENS = 256
# Exponentials in float64 are taken of about so many logits at once, which fit into a core's cache.
BLOCK_LOGITS = 1 << 16


@dataclass(frozen=True)
class Window:
    """Tokens that the model sees together; the last `n_scored` of them are predicted from those before."""

    ids: Sequence[int]
    n_scored: int


@dataclass(frozen=True)
class TargetScores:
    """The scores of a window's n targets: natural log-probabilities, float64 [n], and ranks from 1 [n]."""

    logprobs: Array
    ranks: Array


def windows(ids: Iterable[int], length: int, stride: int) -> Iterator[Window]:
    """Yield windows of `length` tokens that advance by `stride`; each scores the tokens that are new in it.

    The first token of a text is not scored, since nothing comes before it, and with a stride of `length` the
    first one of each window. The last window may be shorter.
    """
    rest = iter(ids)
    window = new = list(islice(rest, length))
    while new:
        if len(window) > 1:
            yield Window(window, min(len(new), len(window) - 1))
        new = list(islice(rest, stride))
        window = [*window[stride:], *new]


def score_windows(engine: Engine, windows: Iterable[Window]) -> Iterator[TargetScores]:
    """Yield the scores of each window; short windows share a forward pass.

    Raises `NumericsError` for logits that are not finite.
    """
    for group in _groups(windows):
        if len(group) == 1:
            yield _score_long(engine, group[0])
            continue
        n_logits = [window.n_scored for window in group]
        logits = engine.forward(ForwardRequest([w.ids[:-1] for w in group], n_logits=n_logits))  # [N, V]
        ends = np.cumsum(n_logits)
        for window, rows in zip(group, np.split(logits, ends[:-1]), strict=True):
            yield _score_targets(rows, window.ids[-window.n_scored :])


def _groups(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Yield windows that fit into one forward pass together, with padding, or one that is longer."""
    group: list[Window] = []
    longest = 0
    for window in windows:
        longest = max(longest, len(window.ids))
        if group and (len(group) + 1) * longest > CHUNK_TOKENS:
            yield group
            group, longest = [], len(window.ids)
        group.append(window)
    if group:
        yield group


def _score_long(engine: Engine, window: Window) -> TargetScores:
    """Score one window of any length, by as many forward passes as its logits need."""
    ids = window.ids[:-1]  # nothing is predicted after the last token
    first = len(ids) - window.n_scored
    cache = engine.new_cache(1, len(ids))
    parts, start = [], 0
    while start < len(ids):
        end = min(max(start, first) + CHUNK_TOKENS, len(ids))
        n = end - max(start, first)
        logits = engine.forward(ForwardRequest([ids[start:end]], cache, n_logits=[n]))  # [n, V]
        parts.append(_score_targets(logits, window.ids[end - n + 1 : end + 1]))
        start = end
    return TargetScores(
        np.concatenate([part.logprobs for part in parts]), np.concatenate([part.ranks for part in parts])
    )


def _score_targets(logits: Array, targets: Sequence[int]) -> TargetScores:
    """Return the scores of n targets by float32 logits [n, V]."""
    n, V = logits.shape
    chosen = logits[np.arange(n), targets]  # [n]
    log_sums, ranks = np.empty(n), np.empty(n, np.int64)
    size = max(1, BLOCK_LOGITS // V)
    for start in range(0, n, size):
        block, here = logits[start : start + size], slice(start, start + size)
        largest = block.max(-1, keepdims=True)  # [·, 1], so that no exponential overflows
        with np.errstate(invalid="ignore"):  # infinities
            exponentials = np.exp(np.subtract(block, largest, dtype=np.float64))
        log_sums[here] = largest[:, 0] + np.log(exponentials.sum(-1))
        ranks[here] = 1 + np.count_nonzero(block > chosen[here, None], axis=-1)
    logprobs = chosen - log_sums
    if not np.isfinite(logprobs).all():
        raise not_finite_error(n)
    return TargetScores(logprobs, ranks)
