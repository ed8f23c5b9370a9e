"""Every option of `gptcli inspect`, with its help, its default, and the checks between options."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gptcli.cli import options
from gptcli.cli.arguments import option, parse_path
from gptcli.errors import UsageError

if TYPE_CHECKING:  # it imports pydantic
    from gptcli.config.presets import ResolvedConfig

PASS, NUMBERS, GRADIENTS = "One forward pass", "The numbers in a file", "Gradients"


@dataclass(frozen=True, kw_only=True)
class InspectArguments(options.ModelArguments):
    """The arguments of `gptcli inspect`."""

    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="WEIGHTS",
            help="A weights file or folder, the same as --weights.",
            show_default=False,
            parser=parse_path,
        ),
    ] = None
    prompt: Annotated[
        str | None, option("--prompt", "Run TEXT through the model and show its tokens.", PASS, "TEXT")
    ] = None
    top_k: Annotated[int | None, option("--top-k", "Show the N most probable next tokens.", PASS, "N")] = None
    position: Annotated[
        int | None,
        option(
            "--position",
            "For --top-k and --logit-lens: predict after token P, from 0; default: the last.",
            PASS,
            "P",
        ),
    ] = None
    all_positions: Annotated[
        bool, option("--all-positions", "Show each token's log-probability, and the perplexity.", PASS)
    ] = False
    layers: Annotated[bool, option("--layers", "Show statistics after every sub-layer.", PASS)] = False
    logit_lens: Annotated[bool, option("--logit-lens", "Show what each layer would predict.", PASS)] = False
    attention: Annotated[
        bool, option("--attention", "Show attention maps; with --output, draw a picture.", PASS)
    ] = False
    layer: Annotated[int, option("--layer", "For --attention: the layer, from 0.", PASS, "L")] = 0
    head: Annotated[
        int | None, option("--head", "For --attention: the head, from 0; default: all.", PASS, "H")
    ] = None
    shapes: Annotated[bool, option("--shapes", "Show the shapes at every module.", PASS)] = False
    batch: Annotated[
        int, option("--batch", "For --shapes without a prompt: rows of the batch.", PASS, "B")
    ] = 2
    tokens: Annotated[
        int, option("--tokens", "For --shapes without a prompt: tokens per row.", PASS, "T")
    ] = 3
    tensor_stats: Annotated[
        bool, option("--tensor-stats", "Show range, mean, zeros and NaN of each tensor.", NUMBERS)
    ] = False
    check: Annotated[
        bool, option("--check", "Like --tensor-stats, with exit status 1 for NaN or infinity.", NUMBERS)
    ] = False
    diff: Annotated[
        Path | None,
        option("--diff", "Compare with these weights.", NUMBERS, "FILE|DIR", parser=parse_path),
    ] = None
    gradients: Annotated[
        bool, option("--gradients", "Show gradients by layer, with shortcuts and without.", GRADIENTS)
    ] = False
    layer_sizes: Annotated[
        str | None,
        option(
            "--layer-sizes",
            "For --gradients: layer sizes of a small network; default: 3,3,3,3,3,1.",
            GRADIENTS,
            "N,N,…",
        ),
    ] = None
    device: options.Device = "auto"
    seed: options.Seed = 123
    json: options.Json = False
    output: options.Output = None
    quiet: options.Quiet = False

    def checked(self) -> "InspectArguments":
        """Return the arguments, with the weights in `weights` alone; raises `UsageError` for invalid ones."""
        if self.file is not None and self.weights is not None:
            raise UsageError("the weights are given twice, as an argument and as --weights; give one of them")
        checked = replace(
            self,
            weights=self.weights if self.file is None else self.file,
            device=options.check_device(self.device),
            seed=options.check_seed(self.seed),
        )
        checked._check_usage()
        return checked

    @property
    def looks_inside(self) -> bool:
        """Return whether an option asks for the insides of a forward pass."""
        return self.top_k is not None or any(
            (self.all_positions, self.layers, self.logit_lens, self.attention, self.shapes)
        )

    @property
    def draws(self) -> bool:
        """Return whether `--output` gets a picture."""
        return self.attention or self.gradients

    def _check_usage(self) -> None:
        """Raise `UsageError` for options that contradict each other, and for numbers that are too small."""
        of_numbers = self.tensor_stats or self.check or self.diff is not None
        has_weights = self.weights is not None or self.pretrained
        if of_numbers and not has_weights:
            raise UsageError(
                "--tensor-stats, --check and --diff read a weights file; give one with --weights"
            )
        if sum((of_numbers, self.gradients, self.looks_inside)) > 1 or (
            of_numbers and self.prompt is not None
        ):
            raise UsageError(
                "the numbers in a file, one forward pass and gradients are separate views; ask for one"
            )
        if self.looks_inside and self.prompt is None and not self.shapes:
            raise UsageError(
                "--top-k, --all-positions, --layers, --logit-lens and --attention need a --prompt"
            )
        if self.layer_sizes is not None and not self.gradients:
            raise UsageError("--layer-sizes is for --gradients")
        if has_weights and (self.gradients or (self.shapes and self.prompt is None)):
            raise UsageError(
                "--gradients and --shapes without a prompt take no weights; give --preset or --config"
            )
        for name, value in (("--top-k", self.top_k), ("--batch", self.batch), ("--tokens", self.tokens)):
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: expected 1 or more")

    def resolve(self) -> "ResolvedConfig":
        """Return the config that the options name."""
        from gptcli.config.presets import resolve_options

        return resolve_options(self.preset, self.config, self.set or ())
