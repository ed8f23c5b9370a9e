"""The options that say how a model is loaded, for the commands that compute with it."""

from typing import Annotated, Any, Literal

from gptcli.cli.arguments import option
from gptcli.cli.options import RUN, check_device, check_dtype, check_seed
from gptcli.errors import UsageError

Quantize = Annotated[
    Literal["int8"] | None,
    option(
        "--quantize", "Store the weights as int8 with a scale per row; products sum in floating point.", RUN
    ),
]
Engine = Annotated[
    Literal["auto", "native", "torch"],
    option(
        "--engine",
        "native: compiled kernels, on a CPU. torch: the model in PyTorch. auto: the fastest.",
        RUN,
    ),
]
Threads = Annotated[int | None, option("--threads", "CPU threads; default: all cores.", RUN, "N")]


def load_options(
    *,
    device: str,
    dtype: str,
    quantize: Literal["int8"] | None,
    engine: Literal["auto", "native", "torch"],
    threads: int | None,
    seed: int,
) -> dict[str, Any]:
    """Return the options of loading a model; raises `UsageError` for invalid values."""
    if threads is not None and not 1 <= threads <= 1024:
        raise UsageError(f"--threads {threads}: expected a number from 1 to 1024")
    return {
        "device": check_device(device),
        "dtype": check_dtype(dtype),
        "quantize": quantize is not None,
        "engine": engine,
        "threads": threads,
        "seed": check_seed(seed),
    }
