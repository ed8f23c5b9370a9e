"""The one place where errors become messages and exit statuses."""

import os
import sys
import traceback
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import typer

from gptcli.cli.output import ReaderGone, print_stderr
from gptcli.cli.streams import prepare_streams
from gptcli.errors import GptcliError
from gptcli.system.signals import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    Terminated,
    exit_on_signal,
    ignore_sigterm,
)
from gptcli.system.torchrun import is_follower, read_torchrun

EXIT_STATUSES = (
    "Exit status: 0 done · 1 impossible with this file, device, disk or memory · 2 wrong usage · "
    "130 interrupted · 143 terminated · 141 the reader of stdout went away. GPTCLI_DEBUG=1 shows tracebacks."
)
EXIT_READER_GONE = 141
OUT_OF_MEMORY = "out of memory; take a smaller preset, a smaller --dtype, or fewer tokens"


def main(app: typer.Typer, program: str) -> NoReturn:
    """Run a command line on this process's arguments and streams, and leave with its exit status."""
    exit_on_signal()
    # Without memory, a backtrace of the tokenizers' Rust libraries takes a lock that is never released.
    os.environ["RUST_BACKTRACE"] = "0"
    prepare_streams()
    if is_follower():
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
    status = run(app, program, sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or EXIT_READER_GONE
    except OSError as error:
        status = _fail(f"stdout: {error.strerror}", 1)
    # Everything is written and closed: skip torch's teardown, which takes 0.4 s.
    os._exit(status)


def run(app: typer.Typer, program: str, arguments: list[str]) -> int:
    """Run one command of `program` and return its exit status; print every error as a message on stderr."""
    try:
        return _run(app, program, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Terminated:
        if read_torchrun() is not None:
            return _fail("torchrun ended this run: another process failed, or torchrun itself was stopped", 1)
        return EXIT_TERMINATED


def _run(app: typer.Typer, program: str, arguments: list[str]) -> int:
    try:
        return int(app(arguments, standalone_mode=False, prog_name=program) or 0)
    except GptcliError as error:
        return _fail(str(error), error.exit_status)
    except typer.TyperException as error:  # wrong usage that Typer itself found
        return _fail(_usage_message(error, program, arguments), error.exit_code)
    except ReaderGone:
        return EXIT_READER_GONE
    except SystemExit as error:  # how Typer handles a broken pipe while it prints help
        return EXIT_READER_GONE if isinstance(error.__context__, BrokenPipeError) else 1
    except MemoryError:
        return _fail(OUT_OF_MEMORY, 1)
    except OSError as error:
        return _fail(f"{error.filename or 'stdout'}: {error.strerror or error}", 1)
    except typer.Abort:
        raise
    except Exception as error:
        return _fail(_unforeseen(error), 1)


def _fail(message: str, status: int) -> int:
    if (torchrun := read_torchrun()) is not None:
        ignore_sigterm()  # torchrun terminates all processes as soon as one has ended
        from gptcli.api import is_first_to_fail

        if not is_first_to_fail(torchrun):
            return status
        sys.stderr = sys.__stderr__ or sys.stderr  # a follower's stderr is /dev/null until now
    if os.environ.get("GPTCLI_DEBUG"):
        traceback.print_exc()
    print_stderr(f"error: {message}")
    return status


def _usage_message(error: typer.TyperException, program: str, arguments: list[str]) -> str:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    option = str(getattr(error, "option_name", ""))
    prompt = next((a for a in arguments if option and a.startswith(option)), "")
    if " " in prompt or (prompt.startswith("-") and not prompt.startswith("--")):
        return f"{message}; put -- before a prompt that begins with a dash: {program} generate -- {prompt!r}"
    names = getattr(getattr(error, "param", None), "opts", ())
    given = next((value for name, value in pairwise(arguments) if name in names), None)
    if given is not None:
        message += f", got {given!r}"
    command = getattr(getattr(error, "ctx", None), "command_path", program)
    return f"{message} (see {command} --help)"


def _unforeseen(error: Exception) -> str:
    """Return one line for an unexpected error; recognize CUDA's out-of-memory error without torch."""
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    text = " ".join(str(error).split())[:300]
    return f"internal error, {type(error).__name__}: {text} (GPTCLI_DEBUG=1 shows where; please report it)"
