"""`python -m gptcli.convert`: a checkpoint as a folder of safetensors."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from gptcli.cli import boundary, options
from gptcli.cli.arguments import takes, to_record
from gptcli.cli.convert_arguments import ConvertArguments
from gptcli.cli.help import PlainCommand
from gptcli.cli.json_text import to_json
from gptcli.cli.output import Notes, OutputWriter
from gptcli.errors import UsageError

PROGRAM = "python -m gptcli.convert"
UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(cls=PlainCommand, epilog=boundary.EXIT_STATUSES)
@takes(ConvertArguments)
def convert(arguments: ConvertArguments) -> None:
    """Convert a checkpoint to a folder of model.safetensors and config.json that gptcli loads.

    SOURCE is a PyTorch checkpoint (.pt, .pth, .bin, .ckpt; only tensors and plain values are read from it), a
    safetensors file, a folder of either, or a repository on the Hugging Face hub. Tensors are converted one
    by one. The answer is a table of every key of SOURCE.

    [bold]Examples[/bold]

    python -m gptcli.convert out/ckpt.pt my-gpt

    python -m gptcli.convert model.pth gpt2-int8 --dtype int8

    python -m gptcli.convert gpt2/ gpt2-bfloat16 --dtype bfloat16 --layout hf
    """
    notes = Notes(arguments.quiet)
    max_file_bytes = parse_size(arguments.shard_size)
    from gptcli.convert.run import ConversionOptions, check_output
    from gptcli.convert.run import convert as convert_checkpoint
    from gptcli.weights.source import local_weights

    check_output(arguments.output, force=arguments.force)
    source, found = local_weights(arguments.source, show_progress=options.shows_progress(notes), pickles=True)
    values = vars(arguments) | {"max_file_bytes": max_file_bytes, "overrides": arguments.set or ()}
    writer = OutputWriter(None)
    with _progress(notes) as advance:
        done = convert_checkpoint(source, arguments.output, to_record(ConversionOptions, values), advance)
    for note in (*found, *done.notes):
        notes.note(note)
    from gptcli.cli.views.conversion import as_json, as_text

    writer.write(to_json(as_json(done)) + "\n" if arguments.json else as_text(done))


def parse_size(text: str) -> int:
    """Return the bytes that a text such as 5GB or 500MiB means; raise `UsageError` for another text."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in UNITS or float(found[1]) <= 0:
        raise UsageError(f"--shard-size {text!r}: expected a size such as 5GB, 500MB or 2GiB")
    return max(1, int(float(found[1]) * UNITS[found[2]]))


@contextmanager
def _progress(notes: Notes) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is told the bytes that were written, and those of all; a bar on a terminal."""
    if not options.shows_progress(notes):
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("writing", total=None)
        yield lambda n_bytes, total: progress.update(task, advance=n_bytes, total=total)


def main() -> NoReturn:
    """Run `python -m gptcli.convert` on this process's arguments."""
    boundary.main(app, PROGRAM)
