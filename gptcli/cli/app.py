"""The `gptcli` program: its commands and the options they share."""

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from gptcli.cli import boundary
from gptcli.cli.boundary import EXIT_STATUSES
from gptcli.cli.generate import generate
from gptcli.cli.help import PlainCommand, PlainGroup
from gptcli.cli.inspect import inspect
from gptcli.cli.params import params
from gptcli.cli.plot_activation import plot_activation
from gptcli.system.torchrun import is_follower
from gptcli.version import __version__

app = typer.Typer(
    name="gptcli",
    cls=PlainGroup,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate,
    "params": params,
    "inspect": inspect,
    "plot-activation": plot_activation,
}
for name, command in COMMANDS.items():
    app.command(name, cls=PlainCommand, epilog=EXIT_STATUSES)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"gptcli {__version__}\n")
        raise typer.Exit


@app.callback(epilog=EXIT_STATUSES)
def gptcli(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has done the work
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A from-scratch GPT-2: decode it, count it, open it, draw it. Works offline.

    python -m gptcli.train trains one, and python -m gptcli.convert converts checkpoints; each has a --help.
    """
    if context.invoked_subcommand != "generate" and is_follower():
        raise typer.Exit  # only the first of torchrun's processes answers
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; print every error as a message on stderr."""
    return boundary.run(app, "gptcli", arguments)


def main() -> NoReturn:
    """Run `gptcli` on this process's arguments."""
    boundary.main(app, "gptcli")
