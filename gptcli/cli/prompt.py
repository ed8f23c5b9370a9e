"""Where the prompt comes from: one argument, or stdin; as text, whatever bytes it was."""

import os
import sys
from collections.abc import Sequence

from gptcli.cli.output import Notes
from gptcli.errors import UsageError


def read_prompt(words: Sequence[str], notes: Notes) -> str:
    """The prompt's text. `-`, or no argument where stdin is no terminal, reads stdin; else it is not touched.

    Raises `UsageError` for several arguments, and for none on a terminal.
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
    data = sys.stdin.buffer.read()
    data = data[:-2] if data.endswith(b"\r\n") else data.removesuffix(b"\n")
    return _decode(data, notes)


def _decode(data: bytes, notes: Notes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        notes.note("the prompt is not all UTF-8; bytes that are not are replaced by U+FFFD")
        return data.decode("utf-8", errors="replace")
