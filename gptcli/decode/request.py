"""One prompt to decode: its ids, and what the context length makes of them and of the tokens asked for."""

from dataclasses import dataclass

from gptcli.config.model_config import ModelConfig
from gptcli.decode.options import GenerationOptions
from gptcli.errors import UsageError
from gptcli.tokenizer import END_OF_TEXT, Tokenizer


@dataclass(frozen=True)
class DecodeRequest:
    """A prompt, encoded for one model, and when its completions end."""

    prompt: str
    prompt_ids: tuple[int, ...]
    context_length: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    slide: bool = True

    @property
    def prompt_tokens_used(self) -> int:
        """Prompt tokens that the model sees at the first step."""
        return min(len(self.prompt_ids), self.context_length)

    @property
    def cache_tokens(self) -> int:
        """Positions that the key/value cache may come to hold."""
        return min(len(self.prompt_ids) + self.max_new_tokens, self.context_length)

    @property
    def tokens_until_full(self) -> int:
        """Tokens that can be generated before the window has to slide: the last one is only predicted."""
        return max(0, self.context_length - len(self.prompt_ids) + 1)

    @property
    def max_tokens(self) -> int:
        """Tokens that can come at most."""
        return self.max_new_tokens if self.slide else min(self.max_new_tokens, self.tokens_until_full)

    def warning(self) -> str | None:
        """Return what part of the prompt is lost, if any is."""
        if len(self.prompt_ids) <= self.context_length:
            return None
        return (
            f"{self._lengths()}: only the last {self.context_length} are used, and each step costs a whole"
            " pass (--overflow stop refuses)"
        )

    def note(self) -> str | None:
        """Return what else the user should know before it runs, if anything."""
        n = self.tokens_until_full
        lengths = f"{self._lengths()}, room for {n}"
        if not self.prompt:
            return f"the prompt is empty: starting from {END_OF_TEXT}"
        if self.max_new_tokens <= n or not n:
            return None
        if self.slide:
            return (
                f"{lengths}: from new token {n + 1} on the window slides,"
                " and each step costs a whole pass (--overflow stop ends there)"
            )
        return f"{lengths}: ends there (--overflow slide goes on)"

    def _lengths(self) -> str:
        return f"prompt of {len(self.prompt_ids)} tokens, context of {self.context_length}"


def prepare_request(
    prompt: str,
    tokenizer: Tokenizer,
    config: ModelConfig,
    options: GenerationOptions,
    max_new_tokens: int | None = None,
) -> DecodeRequest:
    """Encode a prompt; `max_new_tokens` overrides the options'.

    Raises `UsageError` for a prompt that the model cannot take.
    """
    ids = tuple(tokenizer.encode(prompt, plain=options.plain_prompt))
    if not ids:
        if tokenizer.end_of_text is None:
            raise UsageError(
                "the prompt is empty, and this model has no end of text to start from; give a prompt"
            )
        ids = (tokenizer.end_of_text,)
    slide = options.overflow == "slide"
    if len(ids) > config.context_length and not slide:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, and the context length is {config.context_length};"
            " shorten it, or let --overflow slide use its end"
        )
    n = options.max_new_tokens if max_new_tokens is None else max_new_tokens
    return DecodeRequest(prompt, ids, config.context_length, n, options.stops, options.ignore_eos, slide)
