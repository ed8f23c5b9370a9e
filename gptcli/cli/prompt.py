"""The prompt: one argument, or stdin, decoded from any bytes."""

import os
import sys
from collections.abc import Sequence

from gptcli.cli.bounded import read_bounded
from gptcli.cli.output import Notes
from gptcli.errors import UsageError
from gptcli.system.text_file import decode_text


def read_prompt(words: Sequence[str], notes: Notes) -> str:
    """Return the prompt: the argument, or stdin for `-` and for no argument. Nothing else reads stdin.

    Raises `UsageError` for several arguments, for none if stdin is a terminal, and for more bytes than a prompt
    can have.
    """
    if len(words) > 1:
        whole = " ".join(words)
        raise UsageError(
            f"{len(words)} prompts given, one expected; quote a prompt of several words: {whole!r}"
        )
    if words and words[0] != "-":
        return _decode(os.fsencode(words[0]), notes)
    if sys.stdin is None:
        raise UsageError("stdin is closed; give the prompt as an argument")
    if not words and sys.stdin.isatty():
        raise UsageError('no prompt: give one in quotes, as in gptcli generate "Hello, I am", or pipe it in')
    text = _decode(read_bounded(sys.stdin.buffer, "stdin"), notes)
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _decode(data: bytes, notes: Notes) -> str:
    text, is_replaced = decode_text(data)
    if is_replaced:
        notes.note("the prompt is not all UTF-8; the other bytes are replaced by U+FFFD")
    return text
