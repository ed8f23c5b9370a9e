"""The answer on stdout or in a file, and notes on stderr."""

import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from gptcli.cli.files import write_atomically
from gptcli.system.signals import raise_on_signal

# Control characters but newline and tab, the C1 block, and what reverses the text after it (Unicode's UAX #9,
# section 2): what could drive a terminal, or show something else than there is.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
_VISIBLE |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_ONE_LINE = _VISIBLE | {9: "\\t", 10: "\\n", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def visible(text: str) -> str:
    """Return `text` with its control characters spelled out, so that it cannot drive the terminal."""
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """Return `text` as `visible` does, with line breaks and tabs spelled out too.

    A name in a file or a path must not look like a line that the program prints.
    """
    return text.translate(_ONE_LINE)


class ReaderGone(BaseException):
    """The reader of stdout has gone away (`| head -1`): the program ends without a message."""


class Notes:
    """Notes and warnings on stderr, one line each; `quiet` drops them, never an error."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def note(self, text: str | None) -> None:
        """Print a note, if there is one."""
        if text and not self.quiet:
            print_stderr(f"note: {text}")

    def warn(self, text: str | None) -> None:
        """Print a warning, if there is one."""
        if text and not self.quiet:
            print_stderr(f"warning: {text}")


def print_stderr(text: str) -> None:
    """Print one line on stderr, even with `--quiet`, after everything that was written to stdout.

    A stderr that is closed or full loses the line, and nothing else.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    with suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)  # noqa: T201 - the one place that prints


def write_stdout(text: str) -> None:
    """Write all of a text to stdout; Python would lose what a non-blocking one does not take at once."""
    sys.stdout.flush()
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError):  # a test's stand-in
        sys.stdout.write(text)
        return
    data = memoryview(text.encode("utf-8", errors="replace"))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


class OutputWriter:
    """The answer: streamed to stdout as it comes, or kept and written to a file at the end."""

    def __init__(self, output: Path | None) -> None:
        raise_on_signal()  # from here on an interruption must end the line, and leave no temporary file
        self._output = output
        self._kept: list[bytes] = []
        self._on_terminal = output is None and sys.stdout.isatty()
        self._at_line_start = True

    def write(self, text: str) -> None:
        """Write text as it is; on a terminal, spell out its control characters."""
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        if self._output is not None:
            self._kept.append(text.encode("utf-8", errors="replace"))
            return
        try:
            write_stdout(visible(text) if self._on_terminal else text)
        except BrokenPipeError:
            raise ReaderGone from None

    def write_bytes(self, data: bytes) -> None:
        """Keep bytes, such as a picture, for the file."""
        assert self._output is not None
        self._kept.append(data)

    def end_line(self) -> None:
        """Begin a new line, unless the last one has just ended."""
        if not self._at_line_start:
            self.write("\n")

    def close(self) -> None:
        """Write the file, if there is one, as a whole."""
        if self._output is not None:
            write_atomically(self._output, b"".join(self._kept))


def force_utf8(stream: TextIO, errors: str) -> None:
    """Make a standard stream write UTF-8 with plain newlines, whatever the locale."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test's stand-in may have none
        reconfigure(encoding="utf-8", errors=errors, newline="\n")
