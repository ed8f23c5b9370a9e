"""A model's weights and cache as the kernels take them: the same memory, as NumPy's arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gptcli.engine.onednn import neighbours
from gptcli.model.cache import KVCache
from gptcli.model.int8 import Int8Linear
from gptcli.model.norm import LayerNorm

Array = np.ndarray[Any, np.dtype[Any]]
NONE = np.empty(0, np.float32)
_STORED_AS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}


class Linear(NamedTuple):
    """Matrices [O, I] that read the same input, with biases and scales, empty where there are none."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    scales: tuple[Array, ...]


def block_of(block: Any) -> tuple[Any, ...]:
    """A block's norms and matrices, in the order in which `kernels.block` takes them."""
    att, ff = block.att, block.ff
    up, down = ff.layers[0], ff.layers[2]
    qkv = _side_by_side([att.W_query, att.W_key, att.W_value])
    return (norm_of(block.norm1), norm_of(block.norm2), qkv, *map(linear_of, (att.out_proj, up, down)))


def norm_of(norm: LayerNorm) -> tuple[Array, Array]:
    """Scale and shift."""
    return _array(norm.scale), _array(norm.shift)


def linear_of(linear: nn.Linear | Int8Linear) -> Linear:
    """A linear by itself."""
    return _side_by_side([linear])


def _side_by_side(linears: Sequence[nn.Linear | Int8Linear]) -> Linear:
    """One input's matrices: by rows as they are, by columns as the one matrix that a file cut into views."""
    weights = [linear.weight.detach() for linear in linears]
    biases = [NONE if linear.bias is None else _array(linear.bias.float()) for linear in linears]
    if all(weight.is_contiguous() for weight in weights):
        scales = [_array(linear.scale) if isinstance(linear, Int8Linear) else NONE for linear in linears]
        return Linear(tuple(map(_array, weights)), tuple(biases), tuple(scales))
    whole = neighbours(weights)
    whole = torch.cat(weights) if whole is None else whole
    return Linear((_array(whole),), (np.concatenate(biases),), (NONE,))


def _array(tensor: Tensor) -> Array:
    """The same memory for NumPy, 16-bit numbers as whole ones."""
    tensor = tensor.detach()
    if tensor.dtype in _STORED_AS:
        tensor = tensor.view(_STORED_AS[tensor.dtype])
    array: Array = tensor.numpy()
    return array


def stored_in(cache: KVCache) -> Array:
    """A cache of one row: [L, 2, H, capacity, D]."""
    whole: Array = _array(cache.data)  # [L, 2, 1, H, capacity, D]
    return whole[:, :, 0]
