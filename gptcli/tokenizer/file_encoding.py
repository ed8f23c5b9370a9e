"""A tokenizer of files, through the tokenizers library."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gptcli.tokenizer.detokenizer import ByteDetokenizer, ContextDetokenizer, Detokenizer
from gptcli.tokenizer.limits import library_call, require_memory_for

if TYPE_CHECKING:
    import tokenizers

# The most that the library was seen to take, for short words.
BYTES_PER_BYTE = 256
# Texts of less bytes than this need no check of the memory.
SMALL_TEXT = 1 << 20
# How many tokens before a continuation its first token's text depends on, with room to spare.
CONTEXT = 8
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class FileEncoding:
    """A vocabulary of the tokenizers library with its rules."""

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        name: str,
        begin_of_text: int | None = None,
        end_of_text: int | None = None,
    ) -> None:
        self.name, self.begin_of_text, self.end_of_text = name, begin_of_text, end_of_text
        self._library = library
        self._added = library.get_added_tokens_decoder()
        library.no_truncation()
        library.no_padding()
        self.n_tokens = max(library.get_vocab().values(), default=-1) + 1
        decoder = str(library.decoder)
        self._is_byte_level = "ByteLevel(" in decoder
        self._has_byte_tokens = "ByteFallback(" in decoder
        self._has_marked_spaces = "▁" in decoder
        self._needs_context = not decoder.startswith("ByteLevel(")
        self.cuts_before_spaces = _cuts_before_spaces(library)
        # After these alone a continuation begins the text.
        self._frame = {begin_of_text, *self.encode("", plain=True, begins=True)}

    def encode(self, text: str, *, plain: bool, begins: bool) -> list[int]:
        """Return the ids of a text, as `gptcli.tokenizer.Encoding` says."""
        if len(text) >= SMALL_TEXT:
            require_memory_for(text, BYTES_PER_BYTE)
        self._library.encode_special_tokens = plain
        with library_call("tokenizers"):
            return self._library.encode(_whole_characters(text), add_special_tokens=begins).ids

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None where the vocabulary has no text for its id."""
        token = self._library.id_to_token(token_id) if token_id < self.n_tokens else None
        if token is None:
            return None
        if token_id in self._added:
            return token.encode()
        if self._is_byte_level:
            return _byte_level_bytes(token)
        if self._has_byte_tokens and (byte := BYTE.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return (token.replace("▁", " ") if self._has_marked_spaces else token).encode()

    def detokenizer(self, after: Sequence[int]) -> Detokenizer:
        """Return what turns the ids of a continuation into text, after those of a prompt."""
        if not self._needs_context:
            return ByteDetokenizer(self.token_bytes)
        if self._frame.issuperset(after):
            return ContextDetokenizer(self._decode, self._is_byte, ())
        start = max(0, len(after) - CONTEXT)
        while start > 0 and self._is_byte(after[start]):  # a character is not cut
            start -= 1
        return ContextDetokenizer(self._decode, self._is_byte, after[start:])

    def _decode(self, ids: Sequence[int]) -> str:
        with library_call("tokenizers"):
            return self._library.decode([i for i in ids if i < self.n_tokens], skip_special_tokens=False)

    def _is_byte(self, token_id: int) -> bool:
        token = self._library.id_to_token(token_id) if self._has_byte_tokens else None
        return token is not None and BYTE.fullmatch(token) is not None


def _cuts_before_spaces(library: tokenizers.Tokenizer) -> bool:
    """Return whether it is GPT-2's pattern that cuts a text, and nothing looks beyond its cuts."""
    cuts = str(library.pre_tokenizer).startswith("ByteLevel(add_prefix_space=False")
    added = library.get_added_tokens_decoder().values()
    if not cuts or "use_regex=True" not in str(library.pre_tokenizer) or library.normalizer is not None:
        return False
    return not any(token.lstrip or token.rstrip or set(" \n") & set(token.content) for token in added)


def _byte_level_bytes(token: str) -> bytes:
    """Return the bytes that a byte-level token spells, or its text if it has other characters."""
    try:
        return bytes(BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode()


def _byte_of() -> dict[str, int]:
    """Return the byte for each character of byte-level tokens.

    Visible bytes are themselves in Latin-1, the others come from U+0100 on. Source: `bytes_to_unicode` in
    OpenAI's GPT-2, encoder.py.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_of()


def _whole_characters(text: str) -> str:
    """Replace lone surrogates, which the library refuses, as tiktoken does."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
