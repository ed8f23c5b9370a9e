"""Prompts from files that may never end: no line is read further than any prompt can be long."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gptcli.errors import UsageError

# Any context is shorter: a million tokens are some four megabytes.
MAX_PROMPT_BYTES = 1 << 26
# The rest of a line that is too long is skipped, unless it is as long as this.
MAX_SKIPPED_BYTES = 1 << 30
TOO_LONG = f"more than {MAX_PROMPT_BYTES:,} bytes, and no model takes such a prompt"


def read_bounded(file: BinaryIO, name: str) -> bytes:
    """Return all that a file holds; raises `UsageError`, with the file's `name`, if that is no prompt."""
    data = file.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(f"{name}: {TOO_LONG}")
    return data


def bounded_lines(file: BinaryIO, path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a file with their line breaks, and None for one that is too long for a prompt.

    Raises `UsageError` for a line that seems to have no end.
    """
    number = 0
    while line := file.readline(MAX_PROMPT_BYTES):
        number += 1
        if len(line) < MAX_PROMPT_BYTES or line.endswith(b"\n"):
            yield line
            continue
        skipped = 0
        while (rest := file.readline(MAX_PROMPT_BYTES)) and not rest.endswith(b"\n"):
            skipped += len(rest)
            if skipped > MAX_SKIPPED_BYTES:
                raise UsageError(f"--input {path}: line {number} has {TOO_LONG}")
        yield None
