"""`python -m gptcli.train`: train a GPT on text files."""

from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from gptcli.cli import boundary, options
from gptcli.cli.arguments import to_record
from gptcli.cli.render import Notes, say
from gptcli.cli.training_log import ProgressLog, print_json_line
from gptcli.cli.weights_option import local_weights
from gptcli.config.presets import ResolvedConfig, chosen_layers, resolve_options
from gptcli.errors import UsageError
from gptcli.weights.plan import LoadPlan, plan_load

PROGRAM = "python -m gptcli.train"
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
DATA, RECIPE, PROGRESS = "Data and result", "Recipe", "Progress"


@app.command(epilog=boundary.EXIT_STATUSES)
def train(
    data: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE", help="Text to learn, UTF-8 or .xz or .gz of it; repeatable.", rich_help_panel=DATA
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where the model and its run go.", rich_help_panel=DATA
        ),
    ],
    validation: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Text to validate with; the model with the lowest loss on it is kept.",
            rich_help_panel=DATA,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from DIR's checkpoint.", rich_help_panel=DATA)
    ] = False,
    save_dtype: Annotated[
        Literal["float32", "float16", "bfloat16"],
        typer.Option(help="Type of the weights in DIR.", rich_help_panel=DATA),
    ] = "float32",
    preset: options.Preset = None,
    config: options.Config = None,
    set_: options.Set = None,
    weights: options.Weights = None,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Optimizer steps.", min=1, rich_help_panel=RECIPE)
    ] = 1000,
    batch_size: Annotated[
        int, typer.Option(metavar="N", help="Windows per batch.", min=1, rich_help_panel=RECIPE)
    ] = 32,
    accumulate: Annotated[
        int, typer.Option(metavar="N", help="Batches per step.", min=1, rich_help_panel=RECIPE)
    ] = 1,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens per window; default: the context length.", min=1, rich_help_panel=RECIPE
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens between the starts of windows; default: --max-length.",
            min=1,
            rich_help_panel=RECIPE,
        ),
    ] = None,
    optimizer: Annotated[
        Literal["adamw", "muon"],
        typer.Option(help="muon: Muon for the blocks' matrices, AdamW for the rest.", rich_help_panel=RECIPE),
    ] = "adamw",
    learning_rate: Annotated[
        float, typer.Option(metavar="X", help="AdamW's peak rate.", min=0, rich_help_panel=RECIPE)
    ] = 6e-4,
    muon_learning_rate: Annotated[
        float, typer.Option(metavar="X", help="Muon's peak rate.", min=0, rich_help_panel=RECIPE)
    ] = 0.02,
    final_fraction: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="The last rate, as a fraction of the peak.",
            min=0,
            max=1,
            rich_help_panel=RECIPE,
        ),
    ] = 0.1,
    warmup_steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of linear warm-up.", min=0, rich_help_panel=RECIPE)
    ] = 100,
    weight_decay: Annotated[
        float,
        typer.Option(
            metavar="X", help="Decay of the weights, except biases and norms.", min=0, rich_help_panel=RECIPE
        ),
    ] = 0.1,
    clip_norm: Annotated[
        float, typer.Option(metavar="X", help="Largest norm of the gradient.", min=0, rich_help_panel=RECIPE)
    ] = 1.0,
    balance_weight: Annotated[
        float,
        typer.Option(
            metavar="X", help="Weight of the experts' load-balancing loss.", min=0, rich_help_panel=RECIPE
        ),
    ] = 0.01,
    autocast: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            help="bfloat16 matrix products; auto where the processor has them.", rich_help_panel=RECIPE
        ),
    ] = "auto",
    device: options.Device = "auto",
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", help="Draws the weights, dropout and the order of the text.", rich_help_panel=RECIPE
        ),
    ] = 123,
    evaluate_every: Annotated[
        int, typer.Option(metavar="N", help="Steps between validations.", min=0, rich_help_panel=PROGRESS)
    ] = 250,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", help="Steps between checkpoints.", min=0, rich_help_panel=PROGRESS)
    ] = 250,
    sample_every: Annotated[
        int,
        typer.Option(metavar="N", help="Steps between samples; 0: none.", min=0, rich_help_panel=PROGRESS),
    ] = 250,
    sample_prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="The start of each sample.", rich_help_panel=PROGRESS)
    ] = "Once upon a time",
    json: Annotated[
        bool, typer.Option("--json", help="The log as JSON lines on stdout.", rich_help_panel=PROGRESS)
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a GPT on text, and write a folder that gptcli generate --weights takes.

    Training starts from random weights, or from those that --weights names.

    Ctrl-C ends it after the current step, with a checkpoint; --resume continues from that to the same losses.

    [bold]Examples[/bold]

    python -m gptcli.train --data mine.txt --weights gpt2/ --learning-rate 5e-5 --output tuned

    python -m gptcli.train --data stories.txt --preset gpt2-small --set n_layers=4 --output my-model
    """
    arguments = locals()  # before other names are bound
    notes = Notes(quiet)
    weights = local_weights(weights, notes)
    if weights is None:
        source: ResolvedConfig | LoadPlan = resolve_options(preset, config, set_ or [])
    else:
        source = plan_load(weights, chosen_layers(preset, config, set_ or []))
    device, _ = options.check_device(device), options.check_seed(seed)
    window = max_length or source.config.context_length
    if window > source.config.context_length:
        raise UsageError(f"--max-length {window}: the context length is {source.config.context_length}")

    from gptcli.system.device import find_device
    from gptcli.train.run import Interrupted, RunOptions, TrainingRun
    from gptcli.train.settings import TrainingSettings, has_bfloat16_products

    place = find_device(device)
    with_bfloat16 = has_bfloat16_products(place) if autocast == "auto" else autocast == "on"
    lengths = {"max_length": window, "stride": stride or window}
    settings = to_record(TrainingSettings, arguments, autocast=with_bfloat16, **lengths)
    run_options = to_record(RunOptions, arguments, validation=validation or [])
    log = print_json_line if json else ProgressLog(quiet)
    run = TrainingRun(source, settings, run_options, place, log=log, note=notes.note)
    try:
        run.train()
    except Interrupted as error:
        say(f"stopped after step {run.done}; --resume continues from there")
        raise typer.Exit(128 + error.signal_number) from None


def main() -> NoReturn:
    """Run `python -m gptcli.train` on this process's arguments."""
    boundary.main(app, PROGRAM)
