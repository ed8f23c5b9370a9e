"""What leaves the program: raw text and strict JSON on stdout or to a file, notes on stderr."""

import sys
from pathlib import Path
from typing import TextIO

from gptcli.cli.files import write_atomically
from gptcli.system.signals import raise_on_signal

# Control characters but newline and tab, and the C1 block: what could drive a terminal.
_VISIBLE = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def visible(text: str) -> str:
    """`text` with its control characters written out, so that it cannot drive the terminal."""
    return text.translate(_VISIBLE)


class ReaderGone(BaseException):
    """Whoever read our stdout has left (`| head -1`): nothing more to say, to anybody."""


class Notes:
    """Notes and warnings on stderr, one line each; `quiet` drops them, never an error."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def note(self, text: str | None) -> None:
        if text and not self.quiet:
            print_stderr(f"note: {text}")

    def warn(self, text: str | None) -> None:
        if text and not self.quiet:
            print_stderr(f"warning: {text}")


def print_stderr(text: str) -> None:
    """One line on stderr, in any case, behind whatever stdout has said so far."""
    sys.stdout.flush()
    print(visible(text), file=sys.stderr, flush=True)  # noqa: T201 - the one place that prints


class OutputWriter:
    """The answer, streamed to stdout as it comes, or kept and written to a file when it is whole."""

    def __init__(self, output: Path | None) -> None:
        raise_on_signal()  # from here on there is something to close
        self._output = output
        self._kept: list[bytes] = []
        self._on_terminal = output is None and sys.stdout.isatty()
        self._at_line_start = True

    def write(self, text: str) -> None:
        """Pass text on, raw; on a terminal with its control characters made visible."""
        if not text:
            return
        self._at_line_start = text.endswith("\n")
        if self._output is not None:
            self._kept.append(text.encode("utf-8", errors="replace"))
            return
        try:
            sys.stdout.write(visible(text) if self._on_terminal else text)
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    def write_bytes(self, data: bytes) -> None:
        """Keep what is not text, a picture say, for the file."""
        assert self._output is not None
        self._kept.append(data)

    def end_line(self) -> None:
        """Begin a new line unless one has just begun."""
        if not self._at_line_start:
            self.write("\n")

    def close(self) -> None:
        """Write the file, if it is one, all at once."""
        if self._output is not None:
            write_atomically(self._output, b"".join(self._kept))


def force_utf8(stream: TextIO, errors: str) -> None:
    """Let a standard stream speak UTF-8 with plain newlines, whatever the locale."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test's stand-in may have none
        reconfigure(encoding="utf-8", errors=errors, newline="\n")
