"""`python -m gptcli.train`: train a GPT on text files."""

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gptcli.cli import boundary, options
from gptcli.cli.render import Notes, say
from gptcli.config.dtypes import ComputeDType
from gptcli.errors import UsageError
from gptcli.weights.source import select_source

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
            metavar="FILE", help="Text to be judged by; the best model by it is kept.", rich_help_panel=DATA
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from DIR's checkpoint.", rich_help_panel=DATA)
    ] = False,
    save_dtype: Annotated[
        ComputeDType,
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
        int, typer.Option(metavar="N", help="Windows a batch.", min=1, rich_help_panel=RECIPE)
    ] = 32,
    accumulate: Annotated[
        int, typer.Option(metavar="N", help="Batches a step.", min=1, rich_help_panel=RECIPE)
    ] = 1,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens a window; default: the context length.", min=1, rich_help_panel=RECIPE
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens between windows; default: as many as a window has.",
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
            metavar="X", help="The last rate, as a part of the peak.", min=0, max=1, rich_help_panel=RECIPE
        ),
    ] = 0.1,
    warmup_steps: Annotated[
        int, typer.Option(metavar="N", help="Steps of linear warm-up.", min=0, rich_help_panel=RECIPE)
    ] = 100,
    weight_decay: Annotated[
        float, typer.Option(metavar="X", help="Not on biases and norms.", min=0, rich_help_panel=RECIPE)
    ] = 0.1,
    clip_norm: Annotated[
        float, typer.Option(metavar="X", help="Largest norm of the gradient.", min=0, rich_help_panel=RECIPE)
    ] = 1.0,
    balance_weight: Annotated[
        float,
        typer.Option(metavar="X", help="Of the experts' load balance.", min=0, rich_help_panel=RECIPE),
    ] = 0.01,
    autocast: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            help="bfloat16 matrix products; auto where the processor has them.", rich_help_panel=RECIPE
        ),
    ] = "auto",
    device: options.Device = "auto",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides weights, dropout and order.", rich_help_panel=RECIPE)
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
        str, typer.Option(metavar="TEXT", help="What samples begin with.", rich_help_panel=PROGRESS)
    ] = "Once upon a time",
    json: Annotated[
        bool, typer.Option("--json", help="The log as JSON lines on stdout.", rich_help_panel=PROGRESS)
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a GPT on text, and write a folder that gptcli generate --weights takes.

    It begins with random weights, or with those that --weights names.

    Ctrl-C ends after the step under way and writes a checkpoint; --resume goes on from it to the same losses.

    [bold]Examples[/bold]

    python -m gptcli.train --data mine.txt --weights gpt2/ --learning-rate 5e-5 --output tuned

    python -m gptcli.train --data stories.txt --preset gpt2-small --set n_layers=4 --output my-model
    """
    source = select_source(weights, preset=preset, config=config, overrides=set_ or [], use_shipped=False)
    device, seed = options.check_device(device), options.check_seed(seed)
    window = max_length or source.config.context_length
    if window > source.config.context_length:
        raise UsageError(f"--max-length {window}: the context length is {source.config.context_length}")

    from gptcli.runtime import DTYPES
    from gptcli.system.device import find_device
    from gptcli.train.run import Interrupted, Plan, Run
    from gptcli.train.settings import Settings, bfloat16_pays

    place = find_device(device)
    settings = Settings(
        steps=steps,
        batch_size=batch_size,
        accumulate=accumulate,
        max_length=window,
        stride=stride or window,
        optimizer=optimizer,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        final_fraction=final_fraction,
        warmup_steps=warmup_steps,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        balance_weight=balance_weight,
        seed=seed,
        autocast=bfloat16_pays(place) if autocast == "auto" else autocast == "on",
    )
    plan = Plan(
        data,
        validation or [],
        output,
        resume,
        DTYPES[save_dtype],
        evaluate_every,
        checkpoint_every,
        sample_every,
        sample_prompt,
    )
    notes = Notes(quiet)
    log = _print_json if json else Progress(quiet)
    run = Run(source, settings, plan, place, log, notes.note)
    try:
        run.go()
    except Interrupted as error:
        say(f"stopped after step {run.done}; --resume goes on from there")
        raise typer.Exit(128 + error.args[0]) from None


def _print_json(record: dict[str, Any]) -> None:
    sys.stdout.write(json_module.dumps(record) + "\n")
    sys.stdout.flush()


class Progress:
    """The log for people, on stderr: every validation, and every tenth step or so."""

    def __init__(self, quiet: bool, every: int = 10) -> None:
        self._quiet, self._every = quiet, every

    def __call__(self, record: dict[str, Any]) -> None:
        if self._quiet:
            return
        if "loss" not in record:
            nats, bits = record["validation_nats_per_token"], record["validation_bits_per_byte"]
            say(f"step {record['step']}: validation {nats:.4f} nats/token, {bits:.4f} bits/byte")
        elif record["step"] % self._every == 0 or record["seconds_left"] == 0:
            minutes, seconds = divmod(record["seconds_left"], 60)
            say(
                f"step {record['step']}: loss {record['loss']:.4f}, {record['tokens_per_second']:,} tokens/s,"
                f" {minutes}:{seconds:02} left"
            )


if __name__ == "__main__":
    boundary.main(app, PROGRAM)
