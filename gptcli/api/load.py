"""Loading a model by weights, preset or config. torch is imported only when a model is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gptcli.errors import UsageError
from gptcli.weights.source import ModelSource, select_source

if TYPE_CHECKING:
    from gptcli.parallel.process_group import ProcessGroup
    from gptcli.runtime import LoadedModel
    from gptcli.system.torchrun import Torchrun


def load_model(
    weights: str | Path | None = None,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    overrides: Iterable[str] = (),
    pretrained: bool = False,
    tokenizer: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    quantize: Literal["int8"] | None = None,
    engine: Literal["auto", "native", "torch"] = "auto",
    threads: int | None = None,
    seed: int = 123,
) -> LoadedModel:
    """Return a model, ready to decode: a weights file or folder, `hf:owner/name`, a preset or a config.

    Without weights a preset gets those that ship with it (`stories`); any other preset, or a config, gets
    random weights drawn from `seed`. With no arguments the model is `stories`. `overrides` are `KEY=VALUE`;
    `pretrained` fetches the preset's official weights. `tokenizer` is a file or folder, by default that next
    to the weights, or GPT-2's. `engine` is `native`, `torch`, or `auto`: the fastest.
    `threads` are those of the native kernels, or PyTorch's in the whole process. The result's `notes` are
    those that the command line prints. Raises the errors of `gptcli.errors`.
    """
    if quantize not in (None, "int8"):
        raise UsageError(f"--quantize {quantize!r}: expected int8")
    source = select_source(
        weights,
        preset=preset,
        config=None if config is None else Path(config),
        overrides=overrides,
        pretrained=pretrained,
        tokenizer=tokenizer,
    )
    return load(
        source,
        device=device,
        dtype=dtype,
        quantize=quantize == "int8",
        engine=engine,
        threads=threads,
        seed=seed,
        cache_tokens=source.config.context_length,
    )


def load(source: ModelSource, **options: Any) -> LoadedModel:
    """Return the model of a source; the options are those of `gptcli.runtime.load`."""
    from gptcli.runtime import load

    return load(source, **options)


def join_processes(torchrun: Torchrun, device: str) -> ProcessGroup:
    """Connect to the other processes that torchrun started to share the model.

    Raises `UsageError`, `DeviceError` or `ResourceError` if they cannot share one.
    """
    from gptcli.parallel.join import join

    return join(torchrun, device)


def exit_on_bus_error(message: str) -> None:
    """End the process with this message and status 1 if the mapped weights are cut while they are read.

    Without compiled kernels it does nothing.
    """
    from gptcli.engine.native import library

    with suppress(library.KernelsUnavailableError):
        library.exit_on_bus_error(message)


def is_first_to_fail(torchrun: Torchrun) -> bool:
    """Return whether this process is the first to fail, which reports why the run ended."""
    from gptcli.parallel import join

    return join.is_first_to_fail(torchrun)
