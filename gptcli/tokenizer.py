"""GPT-2's byte-pair encoding by tiktoken, with the vocabulary that ships here: no network, no cache."""

import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from gptcli.config.choices import GPT2_END_OF_TEXT
from gptcli.config.model_config import ModelConfig
from gptcli.errors import UsageError

END_OF_TEXT = "<|endoftext|>"


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
    return tiktoken.Encoding(
        "gpt2",
        pat_str=r50k_pat_str,
        mergeable_ranks={token: rank for rank, token in enumerate(read_ranks()[:n_ranks])},
        special_tokens={END_OF_TEXT: n_ranks},
        explicit_n_vocab=n_ranks + 1,
    )


class Tokenizer:
    """The encoder and decoder of one model; `end_of_text` is None if its vocabulary has no such token."""

    def __init__(self, config: ModelConfig) -> None:
        self._vocab_size = config.vocab_size
        has_first_ranks = config.tokenizer == "gpt2-first-ranks"
        self._special = config.vocab_size - 1 if has_first_ranks else GPT2_END_OF_TEXT
        self._encoding = gpt2_encoding(self._special)
        self.end_of_text = self._special if self._special < config.vocab_size else None

    def encode(self, text: str, *, plain: bool = False) -> list[int]:
        """Return the ids of `text`; `<|endoftext|>` in it is the special token, or ordinary text if `plain`.

        Raises `UsageError` for a token that the model's vocabulary does not have.
        """
        allowed = set() if plain else {END_OF_TEXT}
        ids = self._encoding.encode(text, allowed_special=allowed, disallowed_special=())
        for i in ids:
            if i >= self._vocab_size:
                token = self.decode([i])
                raise UsageError(
                    f"the prompt's token {token!r} has id {i}, and this model's vocab_size is"
                    f" {self._vocab_size}; use other words, or a model with a larger vocabulary"
                )
        return ids

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None where the vocabulary has no text for its id."""
        try:
            return self._encoding.decode_single_token_bytes(token_id)
        except KeyError:
            return None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`; replace bytes that are not UTF-8, leave out ids without a text."""
        return b"".join(self.token_bytes(i) or b"" for i in ids).decode("utf-8", errors="replace")
