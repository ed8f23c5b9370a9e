"""The output head at a quarter of its bytes: int8 tells which few tokens can be the most probable.

The head is the largest matrix of GPT-2 small, and greedy decoding wants but one of its 50,257 products. With
Q the head in int8 and E = W - Q what rounding took, |W·x - Q·x| <= |E|·|x| in each row (Cauchy-Schwarz), and
|E| is known. Rows whose interval reaches up to the best lower end are computed again from W itself; all other
rows are smaller for certain. So the largest logit, and every other within rounding of it, is exact.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gptcli.model.int8 import to_int8

# A sum of n float32 products is off by less than n units of rounding of the sum of their magnitudes (Higham
# 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1); here are two sums, and some slack.
UNIT = 2.0**-24
CHUNK = 256  # rows at once, so that building it takes little memory


class QuickHead(NamedTuple):
    """Q as int8 [V, C] with its scales [V]; `radius` [V] times |x| bounds a logit's error."""

    weight: np.ndarray[Any, np.dtype[Any]]
    scale: np.ndarray[Any, np.dtype[Any]]
    radius: np.ndarray[Any, np.dtype[Any]]


@torch.inference_mode()
def build_quick_head(head: nn.Linear) -> QuickHead:
    """Quantize a head [V, C] without bias and measure, row by row, what that takes away."""
    V, C = head.weight.shape
    weight = torch.empty(V, C, dtype=torch.int8)
    scale, radius = torch.empty(V), torch.empty(V)
    for first in range(0, V, CHUNK):
        rows = slice(first, first + CHUNK)
        exact = head.weight[rows].float()
        weight[rows], scale[rows] = to_int8(exact)
        radius[rows] = _norm(exact - weight[rows] * scale[rows, None]) + 4 * C * UNIT * _norm(exact)
    return QuickHead(weight.numpy(), scale.numpy(), radius.numpy())


def _norm(rows: Tensor) -> Tensor:
    """Length of each row, rounded up."""
    length: Tensor = rows.norm(dim=1) * (1 + 1e-5)
    return length
