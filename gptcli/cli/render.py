"""What leaves the program: raw text and strict JSON on stdout or to a file, notes on stderr."""

import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

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
            say(f"note: {text}")

    def warn(self, text: str | None) -> None:
        if text and not self.quiet:
            say(f"warning: {text}")


def say(text: str) -> None:
    """One line on stderr, in any case, behind whatever stdout has said so far."""
    sys.stdout.flush()
    print(visible(text), file=sys.stderr, flush=True)  # noqa: T201 - the one place that prints


class Answer:
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


def to_json(value: Any, indent: str = "") -> str:
    """Strict JSON, a line a key, a list of numbers or names on one line.

    Numbers that are not finite become the strings "NaN", "Infinity", "-Infinity".
    """
    deeper = indent + "  "
    if isinstance(value, Mapping) and value:
        items = [
            f"{deeper}{json.dumps(str(k), ensure_ascii=False)}: {to_json(v, deeper)}"
            for k, v in value.items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):
            return "[\n" + ",\n".join(deeper + to_json(item, deeper) for item in value) + f"\n{indent}]"
        return "[" + ", ".join(to_json(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def to_json_line(value: Any) -> str:
    """The same on one line, as JSON lines want it."""
    if isinstance(value, Mapping):
        items = [f"{json.dumps(str(k), ensure_ascii=False)}: {to_json_line(v)}" for k, v in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(to_json_line, value)) + "]"
    return to_json(value)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[int]) -> str:
    """Aligned columns under a rule; the columns `numbers` stand to the right, the others to the left.

    Never wrapped and never cropped, so that a pipe, a narrow terminal and `TERM=dumb` all get every digit.
    """
    from rich.cells import cell_len  # Chinese names and emoji are two columns wide

    shown = [[visible(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(cell_len(row[column]) for row in shown) for column in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        cells = []
        for column, cell in enumerate(row):
            padding = " " * (widths[column] - cell_len(cell))
            cells.append(padding + cell if column in numbers else cell + padding)
        return "  ".join(cells).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(shown[0]), rule, *(line(row) for row in shown[1:])]) + "\n"


def utf8(stream: TextIO, errors: str) -> None:
    """Let a standard stream speak UTF-8 with plain newlines, whatever the locale."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:  # a test's stand-in may have none
        reconfigure(encoding="utf-8", errors=errors, newline="\n")
