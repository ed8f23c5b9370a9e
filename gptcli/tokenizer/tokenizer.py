"""The tokenizer of one model: an encoding, within the model's vocabulary."""

from collections.abc import Sequence
from typing import Protocol

from gptcli.config.choices import GPT2_END_OF_TEXT
from gptcli.config.model_config import ModelConfig
from gptcli.errors import UsageError
from gptcli.tokenizer.detokenizer import Detokenizer
from gptcli.tokenizer.gpt2 import GPT2Encoding

# Vocabularies are padded to a multiple of up to this many tokens, and tokenizers get fewer new ones.
PADDING = 128
TAKE_ANOTHER = "put the model's own tokenizer.json next to the weights, or name it with --tokenizer"


class Encoding(Protocol):
    """A vocabulary with its rules: GPT-2's own, or that of files.

    `name` is for records and messages. `begin_of_text` is the id of the token that the files name as begin;
    `end_of_text` is the id of `<|endoftext|>`, or of the token that the
    files name as end. `cuts_before_spaces` says that no token spans a visible character and a space or line
    break after it, so that a long text may be cut there.
    """

    name: str
    n_tokens: int
    cuts_before_spaces: bool

    @property
    def begin_of_text(self) -> int | None:
        """Return the id that begins a text."""

    @property
    def end_of_text(self) -> int | None:
        """Return the id that ends a document."""

    def encode(self, text: str, *, plain: bool, begins: bool) -> list[int]:
        """Return the ids of a text; special tokens in it are ordinary text if it is `plain`.

        If the text `begins` a sequence, tokens such as begin of text are added where the files say so.
        """

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None where the vocabulary has no text for its id."""

    def detokenizer(self, after: Sequence[int]) -> Detokenizer:
        """Return what turns the ids of a continuation into text, after those of a prompt."""


class Tokenizer:
    """The encoder and decoder of one model."""

    def __init__(self, config: ModelConfig, encoding: Encoding | None = None) -> None:
        """Without an `encoding` it is GPT-2's own, or that of GPT-2's first ranks if the config says so."""
        self._vocab_size, self._begin = config.vocab_size, config.bos_token_id
        if encoding is None:
            has_first_ranks = config.tokenizer == "gpt2-first-ranks"
            encoding = GPT2Encoding(config.vocab_size - 1 if has_first_ranks else GPT2_END_OF_TEXT)
        self._encoding: Encoding = encoding

    @property
    def name(self) -> str:
        """Return `gpt2`, `gpt2-first-ranks`, or the file of the vocabulary."""
        return self._encoding.name

    @property
    def end_of_text(self) -> int | None:
        """Return the id that separates documents, or None if the model has no such token."""
        found = self._encoding.end_of_text
        return found if found is not None and found < self._vocab_size else None

    def begin_ids(self) -> tuple[int, ...]:
        """Return the ids that an empty prompt stands for; raises `UsageError` if the model has none."""
        if self._begin is None:
            raise UsageError(
                "the prompt is empty, and this model has no token that begins a text (bos_token_id);"
                " give a prompt"
            )
        return (self._begin,)

    @property
    def cuts_before_spaces(self) -> bool:
        """Return whether a long text may be cut before a space or line break after a visible character."""
        return self._encoding.cuts_before_spaces

    def encode(self, text: str, *, plain: bool = False, begins: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens such as `<|endoftext|>` are ordinary text if `plain`.

        A text that `begins` a sequence gets the tokens that the tokenizer's files put around one, which are
        none in GPT-2. Raises `UsageError` for a token that the model's vocabulary does not have.
        """
        ids = self._encoding.encode(text, plain=plain, begins=begins)
        if max(ids, default=0) >= self._vocab_size:
            raise UsageError(self._no_such_id(next(i for i in ids if i >= self._vocab_size)))
        return ids

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, or None where the vocabulary has no text for its id."""
        return self._encoding.token_bytes(token_id)

    def detokenizer(self, after: Sequence[int] = ()) -> Detokenizer:
        """Return what turns the ids of a continuation into text, after those of a prompt."""
        return self._encoding.detokenizer(after)

    def decode(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> str:
        """Return the text of `ids`, as it is `after` other ids; leave out ids without a text.

        Bytes that are not UTF-8 are replaced.
        """
        stream = self.detokenizer(after)
        data = b"".join([*(stream.feed(i) for i in ids), stream.close()])
        return data.decode("utf-8", errors="replace")

    def _no_such_id(self, token_id: int) -> str:
        data = self._encoding.token_bytes(token_id) or b""
        problem = (
            f"the token {data.decode('utf-8', errors='replace')!r} has id {token_id}, and this model's"
            f" vocab_size is {self._vocab_size}: "
        )
        if 0 < self._encoding.n_tokens - self._vocab_size < PADDING:
            return f"{problem}it was added to the tokenizer ({self.name}), not to the model; leave it out"
        return f"{problem}the tokenizer ({self.name}) is not the model's; {TAKE_ANOTHER}"
