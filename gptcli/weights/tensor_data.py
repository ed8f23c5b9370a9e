"""The numbers in a weights file, read in pieces: statistics of any tensor in little memory, without torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gptcli.config.dtypes import SAFETENSORS_DTYPES
from gptcli.errors import WeightsError
from gptcli.model.arrays import Array
from gptcli.weights.detect import TensorMatch
from gptcli.weights.header import TensorInfo
from gptcli.weights.mapped import open_file

# Elements read at a time: 16 MB as float32, 32 as float64.
PIECE = 1 << 22


@dataclass(frozen=True)
class TensorStats:
    """Statistics of one tensor; minimum to std are those of its finite numbers, NaN where there are none."""

    minimum: float
    maximum: float
    mean: float
    std: float
    share_zero: float
    n_nan: int
    n_infinite: int

    @property
    def is_finite(self) -> bool:
        """True if the tensor holds neither NaN nor infinity."""
        return not self.n_nan and not self.n_infinite


def tensor_stats(tensor: TensorInfo) -> TensorStats:
    """Return a tensor's statistics, read in one pass of pieces. Mean and variance are merged in float64.

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
    """Yield the tensor's numbers in order, as flat float arrays of at most `PIECE` elements.

    Raises `WeightsError` for a dtype that NumPy does not have (the 8-bit floats), or a file that ends early.
    """
    numpy_name = SAFETENSORS_DTYPES[tensor.dtype].numpy
    if numpy_name is None:
        raise WeightsError(f"{tensor.file}: dtype {tensor.dtype} cannot be read number by number")
    dtype = np.dtype(numpy_name)
    left = tensor.n_bytes // dtype.itemsize
    with open_file(tensor.file, tensor.stamp) as file:
        file.seek(tensor.data_start + tensor.begin)
        while left:
            raw = np.fromfile(file, dtype, min(PIECE, left))
            if not raw.size:
                raise WeightsError(f"{tensor.file}: corrupt or incomplete: it ends before its tensors do")
            left -= raw.size
            yield _as_float(raw, tensor.dtype)


def read_tensor(tensor: TensorInfo) -> Array:
    """Return all numbers of a tensor in its shape."""
    pieces = list(read_pieces(tensor))
    return (np.concatenate(pieces) if pieces else np.empty(0, np.float32)).reshape(tensor.shape)


def read_parameters(match: TensorMatch) -> dict[str, Array]:
    """Read a tensor as the parameters that it fills, by our names and in our shapes."""
    return dict(match.parameters(read_tensor(match.tensor))) if match.targets else {}


def _as_float(raw: Array, dtype: str) -> Array:
    if dtype == "BF16":  # the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return (
        raw if dtype in ("F32", "F64") else raw.astype(np.float64 if raw.dtype.kind in "iu" else np.float32)
    )
