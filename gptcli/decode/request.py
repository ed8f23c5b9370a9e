"""One request to decode: the prompt as ids, the budget, and what the context length makes of both."""

from dataclasses import dataclass

from gptcli.config.model_config import ModelConfig
from gptcli.errors import UsageError
from gptcli.tokenizer import END_OF_TEXT, Tokenizer


@dataclass(frozen=True)
class Request:
    """What to decode and when to end; valid for the model whose config it was prepared with."""

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
    def room(self) -> int:
        """Tokens that can be generated before the window has to slide: the last one is only predicted."""
        return max(0, self.context_length - len(self.prompt_ids) + 1)

    @property
    def budget(self) -> int:
        """Tokens that can come at most."""
        return self.max_new_tokens if self.slide else min(self.max_new_tokens, self.room)

    def warning(self) -> str | None:
        """What of the prompt is lost, if anything."""
        if len(self.prompt_ids) <= self.context_length:
            return None
        return (
            f"{self._lengths()}: only the last {self.context_length} are used, and each step costs a whole"
            " pass (--overflow stop refuses)"
        )

    def note(self) -> str | None:
        """What else the user should know before it runs."""
        lengths = f"{self._lengths()}, room for {self.room}"
        if not self.prompt:
            return f"the prompt is empty: starting from {END_OF_TEXT}"
        if self.max_new_tokens <= self.room or not self.room:
            return None
        if self.slide:
            return (
                f"{lengths}: from new token {self.room + 1} on the window slides,"
                " and each step costs a whole pass (--overflow stop ends there)"
            )
        return f"{lengths}: ends there (--overflow slide goes on)"

    def _lengths(self) -> str:
        return f"prompt of {len(self.prompt_ids)} tokens, context of {self.context_length}"


def prepare(
    prompt: str,
    tokenizer: Tokenizer,
    config: ModelConfig,
    *,
    max_new_tokens: int,
    stops: tuple[str, ...] = (),
    ignore_eos: bool = False,
    slide: bool = True,
    plain_prompt: bool = False,
) -> Request:
    """Encode the prompt for a model; raises `UsageError` for one that the model cannot take."""
    ids = tuple(tokenizer.encode(prompt, plain=plain_prompt))
    if not ids:
        if tokenizer.end_of_text is None:
            raise UsageError(
                "the prompt is empty, and this model has no end of text to start from; give a prompt"
            )
        ids = (tokenizer.end_of_text,)
    if len(ids) > config.context_length and not slide:
        raise UsageError(
            f"the prompt has {len(ids)} tokens, and the context length is {config.context_length};"
            " shorten it, or let --overflow slide use its end"
        )
    return Request(prompt, ids, config.context_length, max_new_tokens, stops, ignore_eos, slide)
