"""A conversion, from what the user names to a folder that gptcli and transformers load."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gptcli.config.huggingface import to_huggingface
from gptcli.config.model_config import ModelConfig
from gptcli.config.presets import ConfigSource, sources_from_options
from gptcli.convert.output import OutputFile, split_into_files, write_folder
from gptcli.convert.plan import (
    OutputTensor,
    Parameter,
    lay_out,
    parameters_of,
    quantized,
    widened,
    with_zeros,
)
from gptcli.convert.source import open_source
from gptcli.convert.tensors import Tensors
from gptcli.errors import ResourceError, UsageError
from gptcli.tokenizer.files import TOKENIZER_FILES
from gptcli.weights.detect import detect_layout
from gptcli.weights.folders import INDEX, SINGLE
from gptcli.weights.head import resolve_head
from gptcli.weights.layouts import HUGGINGFACE, TUTORIAL, Layout
from gptcli.weights.plan import LoadPlan, plan_checkpoint, plan_load
from gptcli.weights.report import Row, check_report, load_report
from gptcli.weights.sidecar import update_end_tokens

LayoutName = Literal["hf", "tutorial"]
OutputDType = Literal["float32", "bfloat16", "float16", "int8"]
# The biases of GPT-2 in transformers; where a model has none, they are zero.
BIASES = ("qkv_bias", "attn_out_bias", "ffn_bias", "norm_bias")
# What belongs to a checkpoint and is copied as it is.
COPIED = (*TOKENIZER_FILES, "generation_config.json")


@dataclass(frozen=True)
class ConversionOptions:
    """What to write: the layout (None: Hugging Face's if it can be), the dtype (None: the file's own).

    `max_file_bytes` is the size above which the weights are sharded, `key` the state dict among several.
    """

    layout: LayoutName | None = None
    dtype: OutputDType | None = None
    max_file_bytes: int = 5_000_000_000
    config: Path | None = None
    overrides: Sequence[str] = ()
    key: str | None = None
    force: bool = False


@dataclass(frozen=True)
class Conversion:
    """What was read and written: a row for each key of the source, and each tensor of the new files."""

    plan: LoadPlan
    output: Path
    config: ModelConfig
    layout: Layout
    rows: Sequence[Row]
    skipped: Sequence[str]
    files: Sequence[OutputFile]
    copied: Sequence[str]
    notes: Sequence[str]


def convert(
    source: Path, output: Path, options: ConversionOptions, advance: Callable[[int, int], None]
) -> Conversion:
    """Write the checkpoint `source`, a file or folder, as the folder `output`.

    `advance` is called with the bytes of each tensor that is written, and the bytes of all. Raises the errors
    of `gptcli.errors`; then nothing that was there has changed.
    """
    check_output(output, force=options.force)
    tensors = open_source(source, options.key)
    plan = _plan(tensors, options)
    rows = load_report(plan)
    check_report(plan, rows)
    parameters: dict[str, Any] = dict(parameters_of(tensors, plan.detected.by_target))
    config, notes = resolve_head(plan, parameters, equal=_are_equal)
    dtype = options.dtype or ("int8" if plan.detected.is_int8 and options.layout != "hf" else None)
    config, layout = _choose_layout(config, options.layout, dtype)
    new_tensors = list(_output_tensors(parameters, layout, config, dtype))
    files = split_into_files(new_tensors, options.max_file_bytes)
    if dtype == "int8":  # a head in int8 is not the embedding
        config = config.model_copy(update={"tie_embeddings": False})
    text = json.dumps(to_huggingface(config) if layout is HUGGINGFACE else config.model_dump(), indent=2)
    total = sum(file.n_bytes for file in files)
    with _new_folder(output):
        write_folder(output, files, text + "\n", lambda n_bytes: advance(n_bytes, total))
        copied = list(_copy_others(plan.checkpoint.path, output))
        update_end_tokens(output, config)
    written = plan_load(output, [])
    check_report(written, load_report(written))
    return Conversion(
        plan, output, config, layout, rows, tensors.skipped, files, copied, (*plan.notes, *notes)
    )


def check_output(output: Path, *, force: bool) -> None:
    """Raise `ResourceError` for an output that is no folder, or holds a model, unless `force` is given."""
    if output.exists() and not output.is_dir():
        raise ResourceError(f"{output}: is no folder; give one for the new files")
    taken = [name for name in (SINGLE, INDEX, "config.json") if (output / name).exists()]
    if taken and not force:
        raise ResourceError(f"{output}: has {' and '.join(taken)} already; --force replaces them")


def _plan(tensors: Tensors, options: ConversionOptions) -> LoadPlan:
    sources = sources_from_options(None, options.config, options.overrides)
    sidecar = None
    if tensors.config is not None:
        sidecar = ConfigSource("weights", f"the config in {tensors.checkpoint.path}", tensors.config)
    return plan_checkpoint(detect_layout(tensors.checkpoint), sources, sidecar)


def _are_equal(first: Parameter, second: Parameter) -> bool:
    return first.dtype == second.dtype and np.array_equal(first.read(), second.read())


def _choose_layout(
    config: ModelConfig, name: LayoutName | None, dtype: OutputDType | None
) -> tuple[ModelConfig, Layout]:
    """Return the config of the model that is written, and its layout: Hugging Face's, if it can be.

    GPT-2 in transformers has every bias, so those that the model has not are zero there.
    """
    if dtype == "int8":
        if name == "hf":
            raise UsageError("--dtype int8: transformers has no such files; take --layout tutorial")
        return config, TUTORIAL
    with_biases = config.model_copy(update=dict.fromkeys(BIASES, True))
    can_be_gpt2 = to_huggingface(with_biases) is not None
    if name == "hf" and not can_be_gpt2:
        raise UsageError(
            f"--layout hf: GPT-2 in transformers has no {config.feed_forward} with {config.activation} and"
            " these norms; take --layout tutorial"
        )
    if name == "tutorial" or not can_be_gpt2:
        return config, TUTORIAL
    return with_biases, HUGGINGFACE


def _output_tensors(
    parameters: dict[str, Parameter], layout: Layout, config: ModelConfig, dtype: OutputDType | None
) -> Iterator[OutputTensor]:
    if dtype == "int8":  # what stays in floats is float32, so that nothing of the file is converted
        return lay_out(quantized(parameters), layout, config, "float32")
    if dtype is None and layout is TUTORIAL:
        return lay_out(parameters, layout, config, None)
    return lay_out(with_zeros(widened(parameters), config), layout, config, dtype)


@contextmanager
def _new_folder(path: Path) -> Iterator[None]:
    """Make a folder for a block; remove it if the block fails and leaves it empty."""
    was_there = path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be made: {error.strerror}") from None
    try:
        yield
    finally:
        if not was_there and not any(path.iterdir()):
            path.rmdir()


def _copy_others(source: Path, output: Path) -> Iterator[str]:
    """Copy the tokenizer's files from next to the source; yield their names."""
    folder = source if source.is_dir() else source.parent
    for name in COPIED:
        if (folder / name).is_file() and folder.resolve() != output.resolve():
            shutil.copyfile(folder / name, output / name)
            yield name
