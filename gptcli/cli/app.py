"""The command line as a whole: its commands, and the one place where errors become messages and statuses."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from gptcli import __version__
from gptcli.cli.generate import generate
from gptcli.cli.inspect import inspect
from gptcli.cli.params import params
from gptcli.cli.plot_activation import plot_activation
from gptcli.cli.render import ReaderGone, say, utf8
from gptcli.errors import GptcliError

EXIT_STATUSES = (
    "Exit status: 0 done · 1 impossible with this file, device, disk or memory · 2 wrong usage · "
    "130 interrupted · 143 terminated · 141 the reader of stdout went away. GPTCLI_DEBUG=1 shows tracebacks."
)
EXIT_READER_GONE = 141

app = typer.Typer(
    name="gptcli",
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
    app.command(name, epilog=EXIT_STATUSES)(command)


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
    """A from-scratch GPT-2: decode it, count it, open it, draw it. Works offline."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


class Terminated(BaseException):
    """SIGTERM, raised where the program stands so that what is open gets closed."""


def main() -> NoReturn:
    """Run the command line and leave with its exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
    utf8(sys.stderr, errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
        status = _fail("stdout is closed, so there is nowhere to answer", 1)
    else:
        utf8(sys.stdout, errors="replace")
        status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or EXIT_READER_GONE
    except OSError as error:
        status = _fail(f"stdout: {error.strerror}", 1)
    # Everything is written and closed: skip torch's teardown, which takes 0.4 s.
    os._exit(status)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; every error has become a message on stderr."""
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except GptcliError as error:
        return _fail(str(error), error.exit_status)
    except typer.TyperException as error:  # wrong usage that Typer itself found
        return _fail(_usage_message(error, arguments), error.exit_code)
    except ReaderGone:
        return EXIT_READER_GONE
    except SystemExit as error:  # Typer's own answer to a broken pipe, while it prints help
        return EXIT_READER_GONE if isinstance(error.__context__, BrokenPipeError) else 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Terminated:
        return 143
    except MemoryError:
        return _fail("out of memory; take a smaller preset, a smaller --dtype, or fewer tokens", 1)
    except OSError as error:
        return _fail(f"{error.filename or 'stdout'}: {error.strerror or error}", 1)
    except Exception as error:
        return _fail(_unforeseen(error), 1)


def _fail(message: str, status: int) -> int:
    if os.environ.get("GPTCLI_DEBUG"):
        traceback.print_exc()
    say(f"error: {message}")
    return status


def _usage_message(error: typer.TyperException, arguments: list[str]) -> str:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    option = str(getattr(error, "option_name", ""))
    prompt = next((a for a in arguments if option and a.startswith(option)), "")
    if " " in prompt or (prompt.startswith("-") and not prompt.startswith("--")):
        return f"{message}; a prompt that begins with a dash goes behind --: gptcli generate -- {prompt!r}"
    names = getattr(getattr(error, "param", None), "opts", ())
    given = next((value for name, value in pairwise(arguments) if name in names), None)
    if given is not None:
        message += f", got {given!r}"
    command = "".join(f" {name}" for name in arguments[:1] if name in COMMANDS)
    return f"{message} (see gptcli{command} --help)"


def _unforeseen(error: Exception) -> str:
    """One line for what nobody expected; CUDA's out-of-memory error is known by its name, without torch."""
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return "out of memory; take a smaller preset, a smaller --dtype, or fewer tokens"
    text = " ".join(str(error).split())[:300]
    return f"internal error, {type(error).__name__}: {text} (GPTCLI_DEBUG=1 shows where; please report it)"


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated
