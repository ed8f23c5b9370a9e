"""Every option of `python -m gptcli.train`, with its help and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gptcli.cli import options
from gptcli.cli.arguments import option
from gptcli.config.dtypes import ComputeDType

DATA, RECIPE, PROGRESS = "Data and result", "Recipe", "Progress"


@dataclass(frozen=True, kw_only=True)
class TrainArguments(options.ModelArguments):
    """The arguments of `python -m gptcli.train`."""

    data: Annotated[
        list[Path],
        option(
            metavar="FILE", help="Text to learn: UTF-8, or compressed as .xz or .gz; repeatable.", panel=DATA
        ),
    ]
    output: Annotated[
        Path,
        option(
            "--output",
            "-o",
            metavar="DIR",
            help="The folder for the model, its log and its checkpoint.",
            panel=DATA,
        ),
    ]
    validation: Annotated[
        list[Path] | None,
        option(
            metavar="FILE",
            help="Text to validate with; the model with the lowest loss on it is kept.",
            panel=DATA,
        ),
    ] = None
    resume: Annotated[
        bool, option("--resume", help="Continue from the checkpoint in --output.", panel=DATA)
    ] = False
    save_dtype: Annotated[
        ComputeDType,
        option(help="Dtype of the saved weights.", panel=DATA),
    ] = "float32"
    steps: Annotated[int, option(metavar="N", help="Optimizer steps.", min=1, panel=RECIPE)] = 1000
    batch_size: Annotated[int, option(metavar="N", help="Windows per batch.", min=1, panel=RECIPE)] = 32
    accumulate: Annotated[int, option(metavar="N", help="Batches per step.", min=1, panel=RECIPE)] = 1
    max_length: Annotated[
        int | None,
        option(metavar="N", help="Tokens per window; default: the context length.", min=1, panel=RECIPE),
    ] = None
    stride: Annotated[
        int | None,
        option(
            metavar="N",
            help="Tokens between the starts of windows; default: --max-length.",
            min=1,
            panel=RECIPE,
        ),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "muon"],
        option(help="muon uses Muon for the blocks' matrices and AdamW for the rest.", panel=RECIPE),
    ] = "adamw"
    learning_rate: Annotated[
        float, option(metavar="X", help="Peak learning rate of AdamW.", min=0, panel=RECIPE)
    ] = 6e-4
    muon_learning_rate: Annotated[
        float, option(metavar="X", help="Peak learning rate of Muon.", min=0, panel=RECIPE)
    ] = 0.02
    final_fraction: Annotated[
        float,
        option(
            metavar="X",
            help="Last learning rate, as a fraction of the peak.",
            min=0,
            max=1,
            panel=RECIPE,
        ),
    ] = 0.1
    warmup_steps: Annotated[
        int, option(metavar="N", help="Steps of linear warm-up.", min=0, panel=RECIPE)
    ] = 100
    weight_decay: Annotated[
        float,
        option(metavar="X", help="Weight decay; biases and norms have none.", min=0, panel=RECIPE),
    ] = 0.1
    clip_norm: Annotated[
        float, option(metavar="X", help="Largest norm of the gradient.", min=0, panel=RECIPE)
    ] = 1.0
    balance_weight: Annotated[
        float,
        option(metavar="X", help="Weight of the experts' load-balancing loss.", min=0, panel=RECIPE),
    ] = 0.01
    autocast: Annotated[
        Literal["auto", "on", "off"],
        option(help="Matrix products in bfloat16; auto: if the processor supports them.", panel=RECIPE),
    ] = "auto"
    device: options.Device = "auto"
    seed: Annotated[
        int,
        option(metavar="N", help="Seed of the weights, dropout and the order of the text.", panel=RECIPE),
    ] = 123
    evaluate_every: Annotated[
        int,
        option(metavar="N", help="Steps between validations; 0: only after the last.", min=0, panel=PROGRESS),
    ] = 250
    checkpoint_every: Annotated[
        int,
        option(metavar="N", help="Steps between checkpoints; 0: only after the last.", min=0, panel=PROGRESS),
    ] = 250
    sample_every: Annotated[
        int,
        option(metavar="N", help="Steps between samples; 0: none.", min=0, panel=PROGRESS),
    ] = 250
    sample_prompt: Annotated[
        str, option(metavar="TEXT", help="The start of each sample.", panel=PROGRESS)
    ] = "Once upon a time"
    json: Annotated[bool, option("--json", help="Print the log as JSON lines on stdout.", panel=PROGRESS)] = (
        False
    )
    quiet: options.Quiet = False
