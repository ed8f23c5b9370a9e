"""The prompt: one argument, or stdin, decoded from any bytes."""

import os
import sys
from collections.abc import Sequence

from gptcli.cli.bounded import read_bounded
from gptcli.cli.output import Notes
from gptcli.errors import UsageError


def read_prompt(words: Sequence[str], notes: Notes) -> str:
    """Return the prompt: the argument, or stdin for `-` and for no argument. Nothing else reads stdin.

    Raises `UsageError` for several arguments, for none if stdin is a terminal, and for more than
    any prompt can be.
    """
    if len(words) > 1:
        whole = " ".join(words)
        raise UsageError(
            f"{len(words)} prompts given, one expected; quote a prompt of several words: {whole!r}"
        )
    if words and words[0] != "-":
        return _decode(os.fsencode(words[0]), notes)
    if not words and sys.stdin.isatty():
        raise UsageError('no prompt: give one in quotes, as in gptcli generate "Hello, I am", or pipe it in')
    data = read_bounded(sys.stdin.buffer, "stdin")
    data = data[:-2] if data.endswith(b"\r\n") else data.removesuffix(b"\n")
    return _decode(data, notes)


def _decode(data: bytes, notes: Notes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        notes.note("the prompt is not all UTF-8; the other bytes are replaced by U+FFFD")
        return data.decode("utf-8", errors="replace")
