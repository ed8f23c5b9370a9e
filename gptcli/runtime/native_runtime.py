"""Loading for the native kernels: parameters as NumPy arrays, mapped from the file, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gptcli.config.model_config import ModelConfig
from gptcli.engine.native.library import ACTIVATIONS, KernelsUnavailableError, force_variant, load_library
from gptcli.errors import ResourceError
from gptcli.model.arrays import Array, PieceRunner
from gptcli.model.quantize import Names, convert_parameters
from gptcli.system.threads import default_threads
from gptcli.weights.arrays import read_arrays
from gptcli.weights.source import ModelSource

if TYPE_CHECKING:
    from gptcli.model.gpt import GPTModel


def unavailable_reason(config: ModelConfig) -> str | None:
    """Return why the native kernels cannot decode a model of this config here; None if they can."""
    if config.activation not in ACTIVATIONS:
        return f"activation {config.activation} has no kernel"
    return kernels_error()


def kernels_error() -> str | None:
    """Return why the compiled kernels cannot be loaded; None if they can."""
    try:
        load_library()
    except KernelsUnavailableError as error:
        return str(error)
    return None


def force_kernels(name: str) -> None:
    """Use the kernels of one instruction set from now on; raises `ResourceError` where they cannot run."""
    try:
        force_variant(name)
    except ValueError as error:
        raise ResourceError(f"--kernels {name}: {error}") from None


def read_parameters(
    source: ModelSource, dtype: str, random_model: GPTModel | None, *, quantize: bool
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """Return the final config, the parameters by name, of a file or of `random_model`, and notes on the file.

    bfloat16 numbers are uint16. A tied head is left out, unless it is quantized: then it has rows of its own.
    """
    if source.plan is not None:
        config, parameters, notes = read_arrays(source.plan, dtype, quantize=quantize)
    else:
        assert random_model is not None
        config, notes = source.config, ()
        named = random_model.named_parameters()  # names a tied head once, by its embedding
        drawn: dict[Names, Array] = {(name,): tensor.detach().numpy() for name, tensor in named}
        with PieceRunner(default_threads()) as each:
            parameters = convert_parameters(drawn, dtype, each, quantize=quantize)
    return config, parameters, list(notes)
