"""What rounding may decide, and must not: which of two tokens that are all but equally probable."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
# Two logits this close, in parts of the largest magnitude, are a near-tie: 256 units of float32 rounding.
NEAR_TIE = 256 * torch.finfo(torch.float32).eps


def is_finite(logits: Tensor) -> list[bool]:
    """Of each row of [N, V], whether all of it are numbers."""
    least, largest = _extremes(logits)
    finite: list[bool] = (np.isfinite(least) & np.isfinite(largest)).tolist()
    return finite


def is_near_tie(logits: Tensor) -> list[bool]:
    """Of each row of float32 [N, V], whether rounding could decide between its two largest.

    A step with a cache, a batch and a pass over all tokens add up the same numbers in other orders. Where
    that could matter, the whole pass decides, so the path never shows in the text. 256 units of rounding of
    the largest logit are some ten times what is seen; half precision is too coarse: many steps would count.
    """
    if logits.dtype != torch.float32:
        return [False] * len(logits)
    least, largest = _extremes(logits)
    lines = largest - NEAR_TIE * np.maximum(np.maximum(largest, -least), 1.0)  # [N]
    if logits.is_cuda:
        above = (logits >= torch.from_numpy(lines).to(logits.device)[:, None]).sum(-1).tolist()
    else:
        numbers = on_host(logits)
        above = [np.count_nonzero(row >= line) for row, line in zip(numbers, lines, strict=True)]
    return [count > 1 for count in above]


def _extremes(logits: Tensor) -> tuple[Array, Array]:
    """Least and largest of each row of [N, V], NaN where one is: [N] each."""
    if logits.is_cuda:
        both = torch.stack([logits.amin(-1), logits.amax(-1)]).float().cpu().numpy()  # [2, N]
        return both[0], both[1]
    numbers = on_host(logits)
    return numbers.min(-1), numbers.max(-1)


def on_host(logits: Tensor) -> Array:
    """float32 for NumPy, whose single thread is done before PyTorch has woken its own: 2 µs, not 30."""
    numbers: Array = logits.float().numpy()
    return numbers
