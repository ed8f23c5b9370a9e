"""The plan of a conversion: which tensor of the new files comes from which of the old ones, and how."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gptcli.config.dtypes import DTYPES, SAFETENSORS_DTYPES
from gptcli.config.model_config import ModelConfig
from gptcli.config.shapes import Shape, is_quantized, parameter_shapes
from gptcli.convert.tensors import Tensors
from gptcli.errors import WeightsError
from gptcli.model.arrays import Array, convert
from gptcli.model.quantize import to_int8
from gptcli.weights.detect import TensorMatch
from gptcli.weights.layouts import Layout, Rule, is_int8_scale, scale_of

HEAD, EMBEDDING = "out_head.weight", "tok_emb.weight"


@dataclass(frozen=True)
class Parameter:
    """One of our parameters, which `read` reads from the source; `dtype` is PyTorch's name."""

    source: str | None  # None: the source has none, and it is zero
    shape: Shape
    dtype: str
    read: Callable[[], Array]


@dataclass(frozen=True)
class OutputTensor:
    """A tensor of the new files; `sources` are the keys that it is made of, `compute` gives its numbers."""

    name: str
    sources: tuple[str, ...]
    shape: Shape
    dtype: str
    compute: Callable[[], Array]

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.shape) * DTYPES[self.dtype].n_bytes


def parameters_of(tensors: Tensors, matches: Mapping[str, TensorMatch]) -> dict[str, Parameter]:
    """Return every parameter that the source fills, by our name, to be read when it is written.

    int8 weights of the source are read as they are; `widened` gives them as floats.
    """
    parameters = {}
    for target, match in matches.items():

        def read(match: TensorMatch = match, index: int = match.targets.index(target)) -> Array:
            part: Array = match.rule.part(tensors.read(match.name), index)
            return part

        dtype = SAFETENSORS_DTYPES[match.tensor.dtype].name
        parameters[target] = Parameter(match.name, match.target_shape(), dtype, read)
    return parameters


def widened(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters without scales: int8 weights times theirs, in float32."""
    floats = {}
    for name, parameter in parameters.items():
        scale = parameters.get(scale_of(name))
        if parameter.dtype == "int8" and scale is not None:

            def read(rows: Parameter = parameter, scale: Parameter = scale) -> Array:
                return rows.read().astype(np.float32) * scale.read().astype(np.float32)[:, None]

            parameter = Parameter(parameter.source, parameter.shape, "float32", read)
        elif is_int8_scale(name):
            continue
        floats[name] = parameter
    return floats


def with_zeros(parameters: Mapping[str, Parameter], config: ModelConfig) -> dict[str, Parameter]:
    """Return the parameters of `config`; biases that the source has not are zero."""
    dtype = parameters[EMBEDDING].dtype
    return {
        name: parameters.get(name) or _zeros(shape, dtype) for name, shape in parameter_shapes(config).items()
    }


def _zeros(shape: Shape, dtype: str) -> Parameter:
    return Parameter(None, shape, dtype, lambda: np.zeros(shape, DTYPES[dtype].numpy))


def lay_out(
    parameters: Mapping[str, Parameter], layout: Layout, config: ModelConfig, dtype: str | None
) -> Iterator[OutputTensor]:
    """Yield the tensors of a layout, in `dtype` (None: in their own); the layout's rules in reverse."""
    for name, rule, targets in layout.written_as(parameters, config):
        yield _output(name, rule, [parameters[target] for target in targets], dtype)


def _output(name: str, rule: Rule, parts: Sequence[Parameter], dtype: str | None) -> OutputTensor:
    first = parts[0]
    wanted = first.dtype if dtype is None or first.dtype == "int8" else dtype
    shape = list(first.shape[::-1] if rule.is_transposed else first.shape)
    if rule.is_split:
        shape[rule.split_axis] *= 3

    def compute() -> Array:
        arrays = [convert(part.read(), wanted) for part in parts]
        if wanted == "float16" and any(np.isinf(array).any() for array in arrays):
            raise WeightsError(f"{name}: has numbers above 65,504, float16's largest; take --dtype bfloat16")
        if rule.is_transposed:
            arrays = [array.T if array.ndim == 2 else array for array in arrays]
        return np.concatenate(arrays, axis=rule.split_axis) if rule.is_split else arrays[0]

    sources = tuple(dict.fromkeys(part.source for part in parts if part.source))
    return OutputTensor(name, sources, tuple(shape), wanted, compute)


def quantized(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return the parameters with every linear in int8, and its scales; a tied head gets rows of its own.

    The embedding stays: a step reads one row of it. What the source has in int8 is taken as it is.
    """
    result = dict(parameters)
    result.setdefault(HEAD, parameters[EMBEDDING])
    for name, parameter in list(result.items()):
        if is_quantized(name) and parameter.dtype != "int8":
            rows = _Quantized(parameter)
            result[name] = Parameter(parameter.source, parameter.shape, "int8", rows.rows)
            result[scale_of(name)] = Parameter(parameter.source, parameter.shape[:1], "float32", rows.scale)
    return result


class _Quantized:
    """The int8 rows of a weight, and their scales, which are kept because they are written later."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._scale: Array | None = None

    def rows(self) -> Array:
        """Return the int8 rows [O, I]."""
        rows, self._scale = to_int8(self._parameter.read())
        return rows

    def scale(self) -> Array:
        """Return the scale of each row [O]."""
        if self._scale is None:
            self.rows()
        assert self._scale is not None
        return self._scale
