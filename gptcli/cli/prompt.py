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

    Raises `UsageError` for several arguments, for none if stdin is a terminal, and for more than
    any prompt can be.
    """
    if len(words) > 1:
        whole = " ".join(words)
        raise UsageError(
            f"{len(words)} prompts given, one expected; quote a prompt of several words: {whole!r}"
        )
    if words and words[0] != "-":
        return _decode(os.fsencode(words[0]), notes, "utf-8")
    if sys.stdin is None:
        raise UsageError('no prompt: stdin is closed; give a prompt in quotes, as in gptcli generate "Hello"')
    if not words and sys.stdin.isatty():
        raise UsageError('no prompt: give one in quotes, as in gptcli generate "Hello, I am", or pipe it in')
    try:
        text = _decode(read_bounded(sys.stdin.buffer, "stdin"), notes)
    except OSError as error:
        raise UsageError(f"stdin: {error.strerror or error}") from None
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _decode(data: bytes, notes: Notes, encoding: str | None = None) -> str:
    text, is_replaced = decode_text(data, encoding)
    if is_replaced:
        notes.note("the prompt is not all UTF-8; the other bytes are replaced by U+FFFD")
    return text
