"""An int8 head, and a bound on the error of its logits."""

import numpy as np

from gptcli.model.arrays import Array, PieceRunner, widen
from gptcli.model.quantize import quantize_rows
from gptcli.system.threads import default_threads

# A float32 sum of n products is off by less than n units of rounding of the sum of their magnitudes (Higham
# 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1). Here are two sums, and some slack.
UNIT = 2.0**-24


def quantize_head(weight: Array) -> tuple[Array, Array, Array]:
    """Return a head [V, C] as int8 rows [V, C], their scales [V], and error bounds [V].

    A bound times |x| is larger than the error of a logit of the int8 rows, and of rounding in both heads.
    """
    rows, scale = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    bound = np.empty(len(weight), np.float32)

    def quantize(piece: slice) -> None:
        exact = widen(weight[piece])
        rows[piece], scale[piece] = quantize_rows(exact)
        with np.errstate(invalid="ignore"):  # a row with an infinity has no bound: NaN
            lost = exact - rows[piece] * scale[piece, None]
            bound[piece] = _length(lost) + np.float32(4 * weight.shape[1] * UNIT) * _length(exact)

    with PieceRunner(default_threads()) as each:
        each(weight, quantize)
    return rows, scale, bound


def _length(rows: Array) -> Array:
    """Return the Euclidean length of each row [n, C], rounded up."""
    length: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * np.float32(1 + 1e-4)
    return length
