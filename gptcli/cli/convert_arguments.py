"""Every option of `python -m gptcli.convert`, with its help and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from gptcli.cli import options
from gptcli.cli.arguments import option, parse_path

RESULT, READING = "The new files", "What the source does not say"


@dataclass(frozen=True, kw_only=True)
class ConvertArguments:
    """The arguments of `python -m gptcli.convert`."""

    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A checkpoint: a file, a folder, or hf:owner/name.",
            show_default=False,
            parser=parse_path,
        ),
    ]
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT_DIR",
            help="The folder for the new files; it is made.",
            show_default=False,
            parser=parse_path,
        ),
    ]
    layout: Annotated[
        Literal["hf", "tutorial"] | None,
        option(
            "--layout",
            "hf is that of transformers, tutorial the tutorial's; default: hf if the model is a GPT-2. Biases"
            " that a model has not are zeros in hf.",
            RESULT,
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "int8"] | None,
        option(
            "--dtype",
            "int8 is what generate --quantize int8 makes, with scales, in the tutorial's layout, the rest in"
            " float32; default: the source's own.",
            RESULT,
        ),
    ] = None
    shard_size: Annotated[
        str, option("--shard-size", "The largest size of one file; larger models get shards.", RESULT, "SIZE")
    ] = "5GB"
    force: Annotated[bool, option("--force", "Replace the model that is in OUTPUT_DIR.", RESULT)] = False
    config: Annotated[
        Path | None,
        option(
            "--config -c",
            "A config of the model, such as its config.json.",
            READING,
            "FILE",
            parser=parse_path,
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        option("--set", "A key of the config, such as n_heads=12; repeatable.", READING, "KEY=VALUE"),
    ] = None
    key: Annotated[
        str | None,
        option("--key", "The key of the state dict in SOURCE, if it holds several.", READING, "NAME"),
    ] = None
    json: options.Json = False
    quiet: options.Quiet = False
