"""The options that several commands share: one name, one help text, one check each."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gptcli.cli.arguments import parse_path
from gptcli.cli.output import Notes
from gptcli.config.dtypes import COMPUTE_DTYPES
from gptcli.errors import UsageError

if TYPE_CHECKING:  # it imports NumPy
    from gptcli.weights.source import ModelSource

DTYPE_NAMES = ("auto", *COMPUTE_DTYPES)


def check_device(name: str) -> str:
    """Return the device's name in lower case; raises `UsageError` for a name that is none.

    Whether this machine has the device is checked when the model is loaded.
    """
    lower = name.lower()
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", lower):
        raise UsageError(f"--device {name!r}: expected auto, cpu, cuda or cuda:N")
    return lower


def check_dtype(name: str) -> str:
    """Return the dtype's name in lower case; raises `UsageError` for an unknown one."""
    lower = name.lower()
    if lower not in DTYPE_NAMES:
        raise UsageError(f"--dtype {name!r}: expected one of {', '.join(DTYPE_NAMES)}")
    return lower


def check_seed(seed: int) -> int:
    """Return the seed; raises `UsageError` for one that torch's generator does not take."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: expected a whole number from 0 to 2⁶³ - 1")
    return seed


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets that begin with `incomplete`, for the shell's completion."""
    from gptcli.config.presets import preset_names

    return [name for name in preset_names() if name.startswith(incomplete.lower())]


def complete_device(incomplete: str) -> list[str]:
    """Return the devices that begin with `incomplete`."""
    return [name for name in ("auto", "cpu", "cuda", "cuda:0") if name.startswith(incomplete.lower())]


def complete_dtype(incomplete: str) -> list[str]:
    """Return the dtypes that begin with `incomplete`."""
    return [name for name in DTYPE_NAMES if name.startswith(incomplete.lower())]


MODEL, RUN, OUT = "The model", "Device and numbers", "Output"

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "-p",
        metavar="NAME",
        autocompletion=complete_preset,
        help="A model by name, such as gpt2-small or gpt-124m; listed by gptcli params --all.",
        rich_help_panel=MODEL,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        parser=parse_path,
        metavar="FILE",
        help="A YAML or JSON config, or a Hugging Face GPT-2 config.json.",
        rich_help_panel=MODEL,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the config; repeatable.", rich_help_panel=MODEL
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        "-w",
        parser=parse_path,
        metavar="FILE|DIR|hf:OWNER/NAME[@REVISION]",
        help="A .safetensors file, a folder with model.safetensors or its shards, or a repository on the"
        " Hugging Face hub.",
        rich_help_panel=MODEL,
    ),
]
Pretrained = Annotated[
    bool,
    typer.Option(
        "--pretrained",
        help="Load OpenAI's weights of the gpt2-* preset from the Hugging Face hub.",
        rich_help_panel=MODEL,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        parser=parse_path,
        metavar="FILE|DIR",
        help="A tokenizer.json, or a folder with one or with vocab.json and merges.txt; default: that next to"
        " the weights, or GPT-2's.",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        autocompletion=complete_device,
        help="auto, cpu, cuda or cuda:N; auto is CUDA if there is a GPU, else the CPU.",
        rich_help_panel=RUN,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="NAME",
        autocompletion=complete_dtype,
        help="auto, float32, bfloat16 or float16; auto is float32 on a CPU and the file's dtype on CUDA.",
        rich_help_panel=RUN,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        help="Seed of the samples, and of random weights.",
        rich_help_panel=RUN,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.", rich_help_panel=OUT)]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        parser=parse_path,
        metavar="FILE",
        help="Write the answer to FILE, whole or not at all; stdout stays empty.",
        rich_help_panel=OUT,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print no notes and warnings on stderr, only errors.", rich_help_panel=OUT
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The options that name a model, in every command that loads one."""

    preset: Preset = None
    config: Config = None
    set: Set = None
    weights: Weights = None
    pretrained: Pretrained = False
    tokenizer: Tokenizer = None

    def source(self, notes: Notes, *, use_shipped: bool = True) -> "ModelSource":
        """Return the model that the options name, and print its notes; a repository's weights are fetched."""
        from gptcli.weights.source import select_source

        source = select_source(
            self.weights,
            preset=self.preset,
            config=self.config,
            overrides=self.set or (),
            pretrained=self.pretrained,
            tokenizer=self.tokenizer,
            use_shipped=use_shipped,
            show_progress=shows_progress(notes),
        )
        for note in source.notes:
            notes.note(note)
        return source

    def local_weights(self, notes: Notes) -> Path | None:
        """Return the file or folder of the weights that the options name; a repository's are fetched."""
        from gptcli.weights.source import named_weights

        weights = named_weights(self.weights, pretrained=self.pretrained, preset=self.preset)
        return None if weights is None else fetch_weights(weights, notes)


def source_label(source: "ModelSource", seed: int) -> str:
    """Return what a view calls a model: its preset, and where its weights come from."""
    if source.plan is None:
        return f"{source.preset or 'config'}, random weights, seed {seed}"
    return f"{source.preset or 'config'}, " + (
        f"weights {source.weights}" if source.weights else "the weights that ship"
    )


def fetch_weights(weights: Path, notes: Notes) -> Path:
    """Return the file or folder of these weights; a repository's are fetched, with a note."""
    from gptcli.weights.source import local_weights

    path, found = local_weights(weights, show_progress=shows_progress(notes))
    for note in found:
        notes.note(note)
    return path


def shows_progress(notes: Notes) -> bool:
    """Return whether to show a progress bar: on a terminal, and not with `--quiet`."""
    return sys.stderr.isatty() and not notes.quiet
