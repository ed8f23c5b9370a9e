"""`python -m gptcli.train`: train a GPT on text files."""

from typing import NoReturn

import typer

from gptcli.cli import boundary, options
from gptcli.cli.arguments import takes, to_record
from gptcli.cli.help import PlainCommand
from gptcli.cli.output import Notes, print_stderr
from gptcli.cli.train_arguments import TrainArguments
from gptcli.cli.training_log import ProgressLog, print_json_line
from gptcli.errors import UsageError

PROGRAM = "python -m gptcli.train"
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(cls=PlainCommand, epilog=boundary.EXIT_STATUSES)
@takes(TrainArguments)
def train(arguments: TrainArguments) -> None:
    """Train a GPT on text, and write a folder that gptcli generate --weights takes.

    Training starts from random weights, or from those that --weights names.

    Ctrl-C stops it after the current step and writes a checkpoint; --resume continues from there, with the
    same losses as without a stop.

    [bold]Examples[/bold]

    python -m gptcli.train --data mine.txt --weights gpt2/ --learning-rate 5e-5 --output tuned

    python -m gptcli.train --data stories.txt --preset gpt2-small --set n_layers=4 --output my-model
    """
    notes = Notes(arguments.quiet)
    device, _ = options.check_device(arguments.device), options.check_seed(arguments.seed)
    source = arguments.source(notes, use_shipped=False)
    context_length = source.config.context_length
    window = arguments.max_length or context_length
    if window > context_length:
        raise UsageError(f"--max-length {window}: the context length is {context_length}")

    from gptcli.system.device import find_device, torch_device
    from gptcli.train.run import Interrupted, RunOptions, TrainingRun
    from gptcli.train.settings import TrainingSettings, has_bfloat16_products

    place, values = torch_device(find_device(device)), vars(arguments)
    autocast = {"on": True, "off": False}.get(arguments.autocast)
    values |= {"autocast": has_bfloat16_products(place) if autocast is None else autocast}
    values |= {"max_length": window, "stride": arguments.stride or window}
    values |= {"validation": arguments.validation or []}
    log = print_json_line if arguments.json else ProgressLog(arguments.quiet)
    settings, run_options = to_record(TrainingSettings, values), to_record(RunOptions, values)
    run = TrainingRun(source, settings, run_options, place, log=log, note=notes.note)
    try:
        run.train()
    except Interrupted as error:
        print_stderr(f"stopped after step {run.done}; --resume continues from there")
        raise typer.Exit(128 + error.signal_number) from None


def main() -> NoReturn:
    """Run `python -m gptcli.train` on this process's arguments."""
    boundary.main(app, PROGRAM)
