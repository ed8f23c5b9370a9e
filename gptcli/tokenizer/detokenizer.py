"""From the ids of a continuation to its text, token by token, so that it can be streamed."""

from collections.abc import Callable, Sequence
from typing import Protocol

# A character has at most four bytes, so that a token after three incomplete ones ends it or proves it broken.
MAX_HELD = 4


class Detokenizer(Protocol):
    """The text of a continuation in pieces, as bytes in UTF-8. A piece may end inside a character."""

    def feed(self, token_id: int) -> bytes:
        """Return the text that becomes certain with a token."""

    def close(self) -> bytes:
        """Return the text that is still held back, after the last token."""


class ByteDetokenizer:
    """The text of tokens that are bytes, whatever comes before them."""

    def __init__(self, token_bytes: Callable[[int], bytes | None]) -> None:
        self._token_bytes = token_bytes

    def feed(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        return self._token_bytes(token_id) or b""

    def close(self) -> bytes:
        """Return nothing: no bytes are held back."""
        return b""


class ContextDetokenizer:
    """The text of tokens that depends on those before them, such as a space between two words.

    It is what `decode` adds to the text of the tokens before, so that it equals the decoded whole. Held back
    are tokens that are single bytes, up to the first that is none, and half a character.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], is_byte: Callable[[int], bool], after: Sequence[int]
    ) -> None:
        """`after` are the last tokens before the continuation, or none if it begins the text."""
        self._decode, self._is_byte = decode, is_byte
        self._context, self._new = list(after), list[int]()
        self._context_text = decode(self._context)

    def feed(self, token_id: int) -> bytes:
        """Return the text that becomes certain with a token."""
        self._new.append(token_id)
        return b"" if self._is_byte(token_id) else self._take(is_last=False)

    def close(self) -> bytes:
        """Return the text that is still held back, after the last token."""
        return self._take(is_last=True) if self._new else b""

    def _take(self, *, is_last: bool) -> bytes:
        text = self._decode([*self._context, *self._new])
        if text.endswith("\ufffd") and len(self._new) < MAX_HELD and not is_last:
            return b""
        if text.startswith(self._context_text):
            piece = text[len(self._context_text) :]
        else:  # broken bytes spoil those of the characters before, which are written already
            piece = self._decode(self._new)
        # Without text of its own the context would not keep the next token's space.
        self._context = self._new if piece and self._context_text else [*self._context, *self._new]
        self._new, self._context_text = [], self._decode(self._context)
        return piece.encode()
