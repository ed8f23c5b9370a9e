"""Every option of `gptcli inspect`, with its help, its default, and the checks between options."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gptcli.cli import loading, options
from gptcli.cli.arguments import option, parse_path
from gptcli.errors import UsageError

if TYPE_CHECKING:  # it imports pydantic
    from gptcli.config.presets import ResolvedConfig
    from gptcli.weights.source import ModelSource

PASS, NUMBERS, GRADIENTS = "One forward pass", "The numbers in a file", "Gradients"
SCORE = "How well a model predicts a text"


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
    score: Annotated[
        Path | None,
        option(
            "--score",
            "Show nats a token, perplexity and bits a byte of a text file of any length; - reads stdin.",
            SCORE,
            "FILE",
        ),
    ] = None
    per_line: Annotated[
        bool,
        option(
            "--per-line",
            "For --score: one line for each line of FILE, with nats a token, perplexity, bits a byte, tokens"
            " and text between tabs.",
            SCORE,
        ),
    ] = False
    stride: Annotated[
        int | None,
        option(
            "--stride",
            "For --score and --all-positions: the window advances by N tokens; default: half the context.",
            SCORE,
            "N",
        ),
    ] = None
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
    dtype: options.Dtype = "auto"
    quantize: loading.Quantize = None
    engine: loading.Engine = "auto"
    threads: loading.Threads = None
    seed: options.Seed = 123
    json: options.Json = False
    output: options.Output = None
    quiet: options.Quiet = False

    def checked(self) -> "InspectArguments":
        """Return the arguments, with the weights in `weights` alone; raises `UsageError` for invalid ones."""
        if self.file is not None and self.weights is not None:
            raise UsageError("the weights are given twice, as an argument and as --weights; give one of them")
        chosen = self.load_options()
        checked = replace(
            self,
            weights=self.weights if self.file is None else self.file,
            device=chosen["device"],
            dtype=chosen["dtype"],
        )
        checked._check_usage()
        return checked

    @property
    def looks_inside(self) -> bool:
        """Return whether an option asks for the insides of a forward pass."""
        return self.all_positions or self.traces

    @property
    def traces(self) -> bool:
        """Return whether an option asks for more of a forward pass than the scores of its tokens."""
        return self.top_k is not None or any((self.layers, self.logit_lens, self.attention, self.shapes))

    @property
    def scores(self) -> bool:
        """Return whether the answer is scores alone, which any engine computes in any dtype."""
        return self.score is not None or (self.all_positions and not self.traces)

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
        if of_numbers and self.tokenizer is not None:
            raise UsageError(
                "--tokenizer is for texts; --tensor-stats, --check and --diff read numbers alone"
            )
        scores_text = self.score is not None
        if sum((of_numbers, self.gradients, self.looks_inside, scores_text)) > 1 or (
            (of_numbers or scores_text) and self.prompt is not None
        ):
            raise UsageError(
                "the numbers in a file, one forward pass, gradients and --score are separate views;"
                " ask for one"
            )
        if self.looks_inside and self.prompt is None and not self.shapes:
            raise UsageError(
                "--top-k, --all-positions, --layers, --logit-lens and --attention need a --prompt"
            )
        if self.per_line and not scores_text:
            raise UsageError("--per-line is for --score")
        self._check_scores()
        if self.layer_sizes is not None and not self.gradients:
            raise UsageError("--layer-sizes is for --gradients")
        if has_weights and (self.gradients or (self.shapes and self.prompt is None)):
            raise UsageError(
                "--gradients and --shapes without a prompt take no weights; give --preset or --config"
            )
        for name, value in (("--top-k", self.top_k), ("--batch", self.batch), ("--tokens", self.tokens)):
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: expected 1 or more")

    def _check_scores(self) -> None:
        """Raise `UsageError` for options of scores where there are none."""
        if self.stride is not None and not (self.score is not None or self.all_positions):
            raise UsageError("--stride is for --score and --all-positions")
        others = {"--quantize": self.quantize, "--threads": self.threads}
        others |= {"--dtype": self.dtype != "auto", "--engine": self.engine != "auto"}
        if any(others.values()) and not self.scores:
            named = ", ".join(name for name, value in others.items() if value)
            raise UsageError(
                f"{named}: for --score, and for --all-positions alone; other views compute in float32 in"
                " PyTorch"
            )

    def load_options(self) -> dict[str, Any]:
        """Return the options of loading the model; raises `UsageError` for invalid values."""
        return loading.load_options(
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            engine=self.engine,
            threads=self.threads,
            seed=self.seed,
        )

    def resolve(self) -> "ResolvedConfig":
        """Return the config that the options name."""
        from gptcli.config.presets import resolve_options

        if self.tokenizer is not None:
            return self.random_source().resolved
        return resolve_options(self.preset, self.config, self.set or ())

    def random_source(self) -> "ModelSource":
        """Return the model with random weights that the options name."""
        from gptcli.weights.source import select_source

        return select_source(
            preset=self.preset,
            config=self.config,
            overrides=self.set or (),
            tokenizer=self.tokenizer,
            use_shipped=False,
        )
