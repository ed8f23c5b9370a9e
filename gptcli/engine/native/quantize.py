"""int8 rows with a scale each, in NumPy, and what the int8 head needs to know about their error."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gptcli.engine.native.arrays import Array, widen
from gptcli.system.threads import default_threads

ROWS = 256  # at once, so that they stay in the cache

# A float32 sum of n products is off by less than n units of rounding of the sum of their magnitudes (Higham
# 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1). Here are two sums, and some slack.
UNIT = 2.0**-24


def to_int8(weight: Array) -> tuple[Array, Array]:
    """Return the nearest int8 to rows [O, I], and each row's scale [O]: its largest magnitude over 127.

    Source: Dettmers et al. 2022, "LLM.int8()", section 2.1 (absmax, row by row).
    """
    rows, scale = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)

    def quantize(part: slice) -> None:
        rows[part], scale[part] = _quantize(widen(weight[part]))

    _for_parts(len(weight), quantize)
    return rows, scale


def _for_parts(n_rows: int, run: Callable[[slice], None]) -> None:
    """Run a function for every part of the rows, in threads: NumPy lets go of the interpreter's lock."""
    parts = [slice(first, first + ROWS) for first in range(0, n_rows, ROWS)]
    with ThreadPoolExecutor(default_threads()) as pool:
        list(pool.map(run, parts))


def _quantize(part: Array) -> tuple[Array, Array]:
    scale = np.maximum(np.abs(part).max(axis=1), np.finfo(np.float32).tiny) / np.float32(127)
    rounded = part / scale[:, None]
    with np.errstate(invalid="ignore"):  # NaN has no int8
        return np.rint(rounded, out=rounded).astype(np.int8), scale


def quantize_head(weight: Array) -> tuple[Array, Array, Array]:
    """Return a head [V, C] as int8 rows [V, C], their scales [V], and error bounds [V].

    A bound times |x| is larger than the error of a logit of the int8 rows, and of rounding in both heads.
    """
    rows, scale = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    bound = np.empty(len(weight), np.float32)

    def quantize(part: slice) -> None:
        exact = widen(weight[part])
        rows[part], scale[part] = _quantize(exact)
        lost = exact - rows[part] * scale[part, None]
        bound[part] = _length(lost) + np.float32(4 * weight.shape[1] * UNIT) * _length(exact)

    _for_parts(len(weight), quantize)
    return rows, scale, bound


def _length(rows: Array) -> Array:
    """Return the Euclidean length of each row [n, C], rounded up."""
    length: Array = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * np.float32(1 + 1e-4)
    return length
