"""A checkpoint's parameters as NumPy arrays: views of the mapped file wherever layout and dtype allow."""

import numpy as np

from gptcli.config.model_config import ModelConfig
from gptcli.model.arrays import Array, PieceRunner, as_floats, pieces
from gptcli.model.quantize import Names, convert_parameters
from gptcli.system.threads import default_threads
from gptcli.weights.detect import TensorMatch
from gptcli.weights.head import EMBEDDING, HEAD, resolve_head
from gptcli.weights.mapped import map_files, mapped_tensor, release_pages
from gptcli.weights.plan import LoadPlan
from gptcli.weights.report import check_report, load_report


def read_arrays(
    plan: LoadPlan, dtype: str, *, quantize: bool = False
) -> tuple[ModelConfig, dict[str, Array], tuple[str, ...]]:
    """Return the final config, every parameter by our name, and notes on the head.

    bfloat16 numbers are uint16 here. In the file's own dtype nothing is copied: a parameter is a view of the
    mapped file, a Conv1D matrix as its transpose. What is converted, or made int8 by `quantize`, leaves no
    pages of the file in this process's memory. Weights in int8 stay so. A tied head is left out, unless it is
    made int8. Raises `WeightsError` for tensors that are missing, unexpected or misshapen.
    """
    check_report(plan, load_report(plan))
    files = map_files(plan.detected.matches)
    tensors: dict[Names, Array] = {
        match.targets: _in_our_orientation(match, mapped_tensor(match.tensor, files[match.tensor.file]))
        for match in plan.detected.matches
        if match.targets
    }
    ends = {name: tensors.pop((name,)) for name in (EMBEDDING, HEAD) if (name,) in tensors}
    config, notes = resolve_head(plan, ends, equal=_are_equal)
    tensors |= {(name,): array for name, array in ends.items()}
    with PieceRunner(default_threads(), done=release_pages) as each:
        return config, convert_parameters(tensors, dtype, each, quantize=quantize), notes


def _in_our_orientation(match: TensorMatch, tensor: Array) -> Array:
    """Return a tensor as [O, I] or [O]: a view, no copy."""
    return tensor.T if match.rule.is_transposed else tensor


def _are_equal(one: Array, other: Array) -> bool:
    """Return whether two matrices hold the same numbers, in whichever dtype."""
    for piece in pieces(one):
        if not np.array_equal(as_floats(one[piece]), as_floats(other[piece])):
            return False
        release_pages(one[piece])
        release_pages(other[piece])
    return True
