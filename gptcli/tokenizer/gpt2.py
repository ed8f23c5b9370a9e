"""GPT-2's byte-pair encoding by tiktoken, with the vocabulary that ships here: no network, no cache."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING

from gptcli.config.choices import GPT2_END_OF_TEXT
from gptcli.tokenizer.detokenizer import ByteDetokenizer
from gptcli.tokenizer.limits import library_call, require_memory_for

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT = "<|endoftext|>"

# Longer texts are encoded in chunks of about this many characters, so that tiktoken needs little memory.
CHUNK_CHARACTERS = 1 << 20
# The most that tiktoken was seen to take, for a single word of many megabytes.
BYTES_PER_BYTE = 80
# The pattern takes more than a step for each character of white space, and there is a limit of a million.
LONG_RUN = 1000
# White space as in tiktoken's patterns; Python's `\s` has the characters 1C to 1F as well.
WHITE_SPACE = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"


def read_ranks() -> list[bytes]:
    """Return the 50,256 byte-pair tokens in the order of their ranks; a token's index is its id."""
    packed = (files("gptcli") / "vocab" / "gpt2_ranks.zlib").read_bytes()
    data = zlib.decompress(packed)
    tokens, at = [], 0
    while at < len(data):
        end = at + 1 + data[at]
        tokens.append(data[at + 1 : end])
        at = end
    return tokens


@cache
def gpt2_encoding(n_ranks: int = GPT2_END_OF_TEXT) -> tiktoken.Encoding:
    """Return tiktoken's `gpt2` encoding of the first `n_ranks` tokens; end of text has the next id."""
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    return tiktoken.Encoding(
        "gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks={token: rank for rank, token in enumerate(read_ranks()[:n_ranks])},
        special_tokens={END_OF_TEXT: n_ranks},
        explicit_n_vocab=n_ranks + 1,
    )


class GPT2Encoding:
    """GPT-2's own tokenizer, or that of its first ranks."""

    cuts_before_spaces = True

    def __init__(self, n_ranks: int = GPT2_END_OF_TEXT) -> None:
        self.name = "gpt2" if n_ranks == GPT2_END_OF_TEXT else "gpt2-first-ranks"
        self.begin_of_text = self.end_of_text = n_ranks
        self.n_tokens = n_ranks + 1
        self._n_ranks = n_ranks

    @cached_property
    def _tiktoken(self) -> tiktoken.Encoding:
        return gpt2_encoding(self._n_ranks)

    def encode(self, text: str, *, plain: bool, begins: bool) -> list[int]:  # noqa: ARG002 - GPT-2 adds none
        """Return the ids of `text`; `<|endoftext|>` in it is the special token, or text if it is `plain`."""
        if len(text) <= CHUNK_CHARACTERS:
            return self._encode(text, plain=plain)
        return [i for chunk in _chunks(text) for i in self._encode(chunk, plain=plain)]

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None where the vocabulary has no text for its id."""
        try:
            return self._tiktoken.decode_single_token_bytes(token_id)
        except KeyError:
            return None

    def detokenizer(self, after: Sequence[int]) -> ByteDetokenizer:  # noqa: ARG002 - bytes need no context
        """Return what turns the ids of a continuation into text."""
        return ByteDetokenizer(self.token_bytes)

    def _encode(self, text: str, *, plain: bool) -> list[int]:
        if len(text) >= CHUNK_CHARACTERS:
            require_memory_for(text, BYTES_PER_BYTE)
        allowed = set() if plain else {END_OF_TEXT}
        with library_call("tiktoken"):
            try:
                found = self._tiktoken.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
                ids: list[int] = found.tolist()
                return ids
            except ValueError:  # its regular expression gives up in a long run of white space
                return [i for part in _split_special(text, plain) for i in self._encode_white_space(part)]

    def _encode_white_space(self, text: str) -> Iterator[int]:
        """Yield the ids of a text with long runs of white space, which are encoded apart.

        As in GPT-2's pattern `\\s+(?!\\S)`, all of a run but its last character is one piece.
        """
        if text == END_OF_TEXT:
            yield self.end_of_text
            return
        start = 0
        for run in re.finditer(f"(?<!{WHITE_SPACE}){WHITE_SPACE}{{{LONG_RUN},}}", text):
            end = run.end() - (run.end() < len(text))
            yield from self._tiktoken.encode_ordinary(text[start : run.start()])
            yield from self._tiktoken._encode_single_piece(text[run.start() : end])
            start = end
        yield from self._tiktoken.encode_ordinary(text[start:])


def _chunks(text: str) -> Iterator[str]:
    """Yield a text in chunks that no token spans: GPT-2's pattern cuts before a space after a visible one."""
    boundary, start = re.compile(r"\S[ \n]"), 0
    while (found := boundary.search(text, start + CHUNK_CHARACTERS)) is not None:
        yield text[start : found.start() + 1]
        start = found.start() + 1
    yield text[start:]


def _split_special(text: str, plain: bool) -> list[str]:
    """Return a text in parts, with each `<|endoftext|>` a part of its own, unless it is `plain`."""
    return [text] if plain else re.split(f"({re.escape(END_OF_TEXT)})", text)
