"""Near ties: two logits so close that rounding could decide which is larger, and must not."""

from dataclasses import dataclass

import numpy as np

from gptcli.decode.engine import Array

# 96 units of float32 rounding, relative to `scale_of` the logits: more than five times the largest error that
# tests/benchmarks/near_ties.py measures.
FLOAT32_TOLERANCE = 96 * float(np.finfo(np.float32).eps)
# Float64 logits closer than this are equal: the token with the lowest id is taken.
FLOAT64_TIE = 1e-10


@dataclass(frozen=True)
class CheckedLogits:
    """The logits [V] of one position, with the checks that must come before a token is chosen from them."""

    logits: Array
    is_finite: bool
    rounding: float  # the difference of two logits that may be due to rounding; 0: near ties are not decided


def check_logits(logits: Array, tolerance: float) -> list[CheckedLogits]:
    """Return each row of float32 [N, V] with its checks, for a tolerance relative to the logits' scale."""
    least, largest = logits.min(-1), logits.max(-1)  # [N] each; NaN where a logit is NaN
    finite = np.isfinite(least) & np.isfinite(largest)
    with np.errstate(invalid="ignore"):  # infinities
        rounding = np.float32(tolerance) * scale_of(least, largest)  # [N]
    return [
        CheckedLogits(row, bool(is_finite), float(difference))
        for row, is_finite, difference in zip(logits, finite, rounding, strict=True)
    ]


def is_near_tie(logits: Array, rounding: float) -> bool:
    """Return whether the two largest logits of [V] lie so close that `rounding` may decide between them.

    A step with a cache, a batch, and a pass over all tokens sum the same numbers in different orders, as do
    processors. Where that could change the token, float64 decides, so the text never depends on the path.
    """
    return rounding > 0 and int(np.count_nonzero(logits >= logits.max() - logits.dtype.type(rounding))) > 1


def scale_of(least: Array, largest: Array) -> Array:
    """Return what the error of logits is relative to: their spread, or their magnitude if that is larger.

    An offset that all logits share, about -100 in real GPT-2, costs digits of every sum.
    """
    scale: Array = np.maximum(largest - least, np.maximum(largest, -least))
    return scale


def first_largest(exact: Array) -> int:
    """Return the lowest id among the largest float64 logits of [V], which may differ by rounding."""
    return int((exact >= exact.max() - FLOAT64_TIE).argmax())
