"""The numbers in a weights file, read in pieces: statistics of any size in little memory, without torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gptcli.errors import WeightsError
from gptcli.weights.detect import Match
from gptcli.weights.header import TensorInfo

Array = np.ndarray[Any, np.dtype[Any]]

# Elements at a time: 16 MB as float32, 32 as float64.
PIECE = 1 << 22

_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
} | {
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "u1",
}


@dataclass(frozen=True)
class TensorStats:
    """One tensor's numbers; minimum to std are of its finite ones, NaN where there are none."""

    minimum: float
    maximum: float
    mean: float
    std: float
    share_zero: float
    n_nan: int
    n_infinite: int

    @property
    def is_finite(self) -> bool:
        return not self.n_nan and not self.n_infinite


def tensor_stats(tensor: TensorInfo) -> TensorStats:
    """Read a tensor once, piece by piece. Mean and variance are merged in float64.

    Source of the merge: Chan, Golub & LeVeque 1979, "Updating Formulae", equation 1.5.
    """
    low, high, count, mean, m2 = math.inf, -math.inf, 0, 0.0, 0.0
    zeros = nans = infinities = total = 0
    for piece in read_pieces(tensor):
        total += piece.size
        zeros += int((piece == 0).sum())
        is_finite = np.isfinite(piece)
        nans += int(np.isnan(piece).sum())
        if not is_finite.all():
            infinities += int(np.isinf(piece).sum())
            piece = piece[is_finite]
        if piece.size:
            low, high = min(low, float(piece.min())), max(high, float(piece.max()))
            with np.errstate(over="ignore", invalid="ignore"):  # of numbers near 1e308
                their_mean = float(piece.mean(dtype=np.float64))
                their_m2 = float(np.square(np.subtract(piece, their_mean, dtype=np.float64)).sum())
            both = count + piece.size
            delta = their_mean - mean
            m2 += their_m2 + delta * delta * count * piece.size / both
            mean += delta * piece.size / both
            count = both
    if not count:
        low = high = mean = m2 = math.nan
    std = math.sqrt(m2 / count) if count else math.nan
    return TensorStats(low, high, mean, std, zeros / total if total else 0.0, nans, infinities)


def read_pieces(tensor: TensorInfo) -> Iterator[Array]:
    """The tensor's numbers in order, as flat float arrays of at most `PIECE` elements.

    Raises `WeightsError` for a type without a NumPy equal (the 8-bit floats), or a file that ends early.
    """
    if tensor.dtype not in _NUMPY:
        raise WeightsError(f"{tensor.file}: dtype {tensor.dtype} cannot be read number by number")
    dtype = np.dtype(_NUMPY[tensor.dtype])
    left = tensor.n_bytes // dtype.itemsize
    with tensor.file.open("rb") as file:
        file.seek(tensor.data_start + tensor.begin)
        while left:
            raw = np.fromfile(file, dtype, min(PIECE, left))
            if not raw.size:
                raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do")
            left -= raw.size
            yield _as_float(raw, tensor.dtype)


def read_whole(tensor: TensorInfo) -> Array:
    """All numbers of a tensor in its shape."""
    pieces = list(read_pieces(tensor))
    return (np.concatenate(pieces) if pieces else np.empty(0, np.float32)).reshape(tensor.shape)


def parts_of(match: Match) -> dict[str, Array]:
    """A tensor as the parameters that it fills, by our names and in our shapes."""
    whole = read_whole(match.tensor)
    match match.rule.how:
        case "split":
            parts = np.split(whole, 3, axis=-1)
        case "ignore":
            parts = []
        case _:
            parts = [whole]
    turned = match.rule.how in ("split", "transpose")
    return {
        target: part.T if turned and part.ndim == 2 else part
        for target, part in zip(match.targets, parts, strict=True)
    }


def _as_float(raw: Array, dtype: str) -> Array:
    if dtype == "BF16":  # the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return (
        raw if dtype in ("F32", "F64") else raw.astype(np.float64 if raw.dtype.kind in "iu" else np.float32)
    )
