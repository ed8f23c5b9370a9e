"""Near ties: two logits so close that rounding could decide which is larger, and must not."""

from dataclasses import dataclass

import numpy as np

from gptcli.decode.engine import Array

# 256 units of float32 rounding, relative to the largest magnitude.
FLOAT32_TOLERANCE = 256 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class CheckedLogits:
    """The logits [V] of one position, with the checks that must come before a token is chosen from them."""

    logits: Array
    is_finite: bool
    is_near_tie: bool


def check_logits(logits: Array, tolerance: float) -> list[CheckedLogits]:
    """Return each row of float32 [N, V] with its checks: is it finite, are its two largest a near tie?

    A step with a cache, a batch, and a pass over all tokens sum the same numbers in different orders. Where
    that could change the token, a pass over the whole text decides, so the text never depends on the path.
    The tolerance for float32 is about ten times the measured error. In half precision too many steps would
    be near ties, so there the tolerance is 0.
    """
    least, largest = logits.min(-1), logits.max(-1)  # [N] each; NaN where a logit is NaN
    finite = np.isfinite(least) & np.isfinite(largest)
    magnitude = np.maximum(np.maximum(largest, -least), 1.0)
    thresholds = largest - np.float32(tolerance) * magnitude  # [N]
    return [
        CheckedLogits(row, bool(is_finite), tolerance > 0 and int(np.count_nonzero(row >= threshold)) > 1)
        for row, is_finite, threshold in zip(logits, finite, thresholds, strict=True)
    ]
