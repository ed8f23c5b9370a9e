"""A prompt to decode: its ids, and the limits that the context length sets."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gptcli.config.model_config import ModelConfig
from gptcli.decode.options import GenerationOptions
from gptcli.errors import UsageError, count
from gptcli.tokenizer import Tokenizer

if TYPE_CHECKING:  # not imported without processors, so that the program starts fast
    from gptcli.decode.processors import LogitsProcessors


@dataclass(frozen=True)
class DecodeRequest:
    """A prompt, encoded for one model, with the limits of its completions."""

    prompt: str
    prompt_ids: tuple[int, ...]
    context_length: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    eos_token_ids: frozenset[int] = frozenset()  # those that end a completion
    slide: bool = True
    banned_ids: tuple[tuple[int, ...], ...] = ()
    begin_text: str = ""  # the token that an empty prompt begins with

    @property
    def prompt_tokens_used(self) -> int:
        """Return the number of prompt tokens that the model sees at the first step."""
        return min(len(self.prompt_ids), self.context_length)

    @property
    def cache_tokens(self) -> int:
        """Return the number of positions that the key/value cache may need."""
        return min(len(self.prompt_ids) + self.max_new_tokens, self.context_length)

    @property
    def tokens_until_full(self) -> int:
        """Return the number of tokens before the window slides; the last one is only predicted."""
        return max(0, self.context_length - len(self.prompt_ids) + 1)

    @property
    def max_tokens(self) -> int:
        """Return the most tokens that a completion can have."""
        return self.max_new_tokens if self.slide else min(self.max_new_tokens, self.tokens_until_full)

    def warning(self) -> str | None:
        """Return a warning if the prompt is longer than the context."""
        if len(self.prompt_ids) <= self.context_length:
            return None
        return (
            f"{self._lengths()}: only the last {self.context_length} are used, and each token costs a whole"
            " pass (--overflow stop refuses such a prompt)"
        )

    def note(self) -> str | None:
        """Return a note for an empty prompt, or if decoding will reach the end of the context."""
        n = self.tokens_until_full
        lengths = f"{self._lengths()}, room for {n}"
        if not self.prompt:
            return f"the prompt is empty; decoding starts from {self.begin_text}"
        if self.max_new_tokens <= n or not n:
            return None
        if self.slide:
            return (
                f"{lengths}: from new token {n + 1} on the window slides,"
                " and each token costs a whole pass (--overflow stop ends there)"
            )
        return f"{lengths}: decoding stops there (--overflow slide continues)"

    def _lengths(self) -> str:
        return f"prompt of {count(len(self.prompt_ids), 'token')}, context of {self.context_length}"


def prepare_request(
    prompt: str,
    tokenizer: Tokenizer,
    config: ModelConfig,
    options: GenerationOptions,
    max_new_tokens: int | None = None,
) -> DecodeRequest:
    """Encode a prompt; `max_new_tokens` overrides that of the options.

    Raises `UsageError` for a prompt that the model cannot take, and for banned texts that it does not have.
    """
    ids = tuple(tokenizer.encode(prompt, plain=options.plain_prompt))
    ids = ids or tokenizer.begin_ids()
    begin_text = "" if prompt else tokenizer.decode(ids) or f"token {ids[0]}"
    slide = options.overflow == "slide"
    if len(ids) > config.context_length and not slide:
        raise UsageError(
            f"the prompt has {count(len(ids), 'token')}, and the context length is {config.context_length};"
            " shorten it, or use its last tokens with --overflow slide"
        )
    n = options.max_new_tokens if max_new_tokens is None else max_new_tokens
    return DecodeRequest(
        prompt,
        ids,
        config.context_length,
        n,
        options.stops,
        frozenset() if options.ignore_eos else config.eos_token_ids,
        slide,
        banned_ids(options, tokenizer),
        begin_text,
    )


def new_processors(
    options: GenerationOptions, request: DecodeRequest, config: ModelConfig
) -> "LogitsProcessors | None":
    """Return the logits processors of a new completion; None if the options ask for none."""
    if not options.change_logits:
        return None
    from gptcli.decode.processors import LogitsProcessors

    return LogitsProcessors.of(options, request.banned_ids, len(request.prompt_ids), config.vocab_size)


def banned_ids(options: GenerationOptions, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each banned text; raises `UsageError` for a text that the model does not have."""
    return tuple(ids for text in options.bans for ids in _forms(text, tokenizer))


def _forms(text: str, tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of a text, and for a word those that it has after a space."""
    try:
        yield tuple(tokenizer.encode(text, begins=False))
    except UsageError:
        raise UsageError(f"--ban {text!r}: this model's vocabulary does not have its tokens") from None
    if not text[0].isspace():
        with suppress(UsageError):  # a small vocabulary may lack the form after a space
            yield tuple(tokenizer.encode(f" {text}", begins=False))
