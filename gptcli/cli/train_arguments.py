"""Every option of `python -m gptcli.train`, with its help and its default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from gptcli.cli import options
from gptcli.cli.arguments import option, parse_path
from gptcli.config.dtypes import ComputeDType

DATA, RECIPE, PROGRESS = "Data and result", "Recipe", "Progress"


@dataclass(frozen=True, kw_only=True)
class TrainArguments(options.ModelArguments):
    """The arguments of `python -m gptcli.train`."""

    data: Annotated[
        list[Path],
        option(
            "--data",
            "Text to learn: UTF-8, or compressed as .xz or .gz; repeatable.",
            DATA,
            "FILE",
            parser=parse_path,
        ),
    ]
    output: Annotated[
        Path,
        option(
            "--output -o",
            "The folder for the model, its log and its checkpoint.",
            DATA,
            "DIR",
            parser=parse_path,
        ),
    ]
    validation: Annotated[
        list[Path] | None,
        option(
            "--validation",
            "Text to validate with; the model with the lowest loss on it is kept.",
            DATA,
            "FILE",
            parser=parse_path,
        ),
    ] = None
    resume: Annotated[bool, option("--resume", "Continue from the checkpoint in --output.", DATA)] = False
    save_dtype: Annotated[ComputeDType, option("--save-dtype", "Dtype of the saved weights.", DATA)] = (
        "float32"
    )
    steps: Annotated[
        int, option("--steps", "Optimizer steps; --resume with more goes on.", RECIPE, "N", min=1)
    ] = 1000
    batch_size: Annotated[int, option("--batch-size", "Windows per batch.", RECIPE, "N", min=1)] = 32
    accumulate: Annotated[int, option("--accumulate", "Batches per step.", RECIPE, "N", min=1)] = 1
    max_length: Annotated[
        int | None,
        option("--max-length", "Tokens per window; default: the context length.", RECIPE, "N", min=1),
    ] = None
    stride: Annotated[
        int | None,
        option(
            "--stride", "Tokens between the starts of windows; default: --max-length.", RECIPE, "N", min=1
        ),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "muon"],
        option("--optimizer", "muon uses Muon for the blocks' matrices and AdamW for the rest.", RECIPE),
    ] = "adamw"
    learning_rate: Annotated[
        float, option("--learning-rate", "Peak learning rate of AdamW.", RECIPE, "X", min=0)
    ] = 6e-4
    muon_learning_rate: Annotated[
        float, option("--muon-learning-rate", "Peak learning rate of Muon.", RECIPE, "X", min=0)
    ] = 0.02
    final_fraction: Annotated[
        float,
        option(
            "--final-fraction", "Last learning rate, as a fraction of the peak.", RECIPE, "X", min=0, max=1
        ),
    ] = 0.1
    warmup_steps: Annotated[int, option("--warmup-steps", "Steps of linear warm-up.", RECIPE, "N", min=0)] = (
        100
    )
    weight_decay: Annotated[
        float, option("--weight-decay", "Weight decay; biases and norms have none.", RECIPE, "X", min=0)
    ] = 0.1
    clip_norm: Annotated[
        float, option("--clip-norm", "Largest norm of the gradient.", RECIPE, "X", min=0)
    ] = 1.0
    balance_weight: Annotated[
        float, option("--balance-weight", "Weight of the experts' load-balancing loss.", RECIPE, "X", min=0)
    ] = 0.01
    autocast: Annotated[
        Literal["auto", "on", "off"],
        option("--autocast", "Matrix products in bfloat16; auto: if the processor supports them.", RECIPE),
    ] = "auto"
    device: options.Device = "auto"
    seed: Annotated[
        int, option("--seed", "Seed of the weights, dropout and the order of the text.", RECIPE, "N")
    ] = 123
    evaluate_every: Annotated[
        int,
        option(
            "--evaluate-every", "Steps between validations; 0: only after the last.", PROGRESS, "N", min=0
        ),
    ] = 250
    checkpoint_every: Annotated[
        int,
        option(
            "--checkpoint-every", "Steps between checkpoints; 0: only after the last.", PROGRESS, "N", min=0
        ),
    ] = 250
    sample_every: Annotated[
        int, option("--sample-every", "Steps between samples; 0: none.", PROGRESS, "N", min=0)
    ] = 250
    sample_prompt: Annotated[
        str, option("--sample-prompt", "The start of each sample.", PROGRESS, "TEXT")
    ] = "Once upon a time"
    json: Annotated[bool, option("--json", "Print the log as JSON lines on stdout.", PROGRESS)] = False
    quiet: options.Quiet = False
