"""The standard streams of a program, of which the process that started it may have closed some."""

import io
import os
import sys
from pathlib import Path
from typing import NoReturn, TextIO

from gptcli.errors import ResourceError


def prepare_streams() -> None:
    """Make stdout and stderr write UTF-8, and put a stand-in where one is closed."""
    _reserve_descriptors()
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open to the end
    force_utf8(sys.stderr, errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = ClosedStdout()
    force_utf8(sys.stdout, errors="replace")


def force_utf8(stream: TextIO, errors: str) -> None:
    """Make a standard stream write UTF-8 with plain newlines, whatever the locale."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test's stand-in may have none
        reconfigure(encoding="utf-8", errors=errors, newline="\n")


class ClosedStdout(io.StringIO):
    """A stdout that was closed before the program began: it refuses to be written to, and nothing else."""

    def write(self, _text: str) -> NoReturn:
        """Raise `ResourceError`."""
        raise ResourceError("stdout is closed; redirect it to a file or to /dev/null")


def _reserve_descriptors() -> None:
    """Open /dev/null as descriptors 0, 1 and 2 if they are closed.

    Else the next file that is opened becomes one of them, and what a library prints on stderr lands in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
