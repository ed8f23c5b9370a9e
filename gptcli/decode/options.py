"""The options of decoding, as one frozen record."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gptcli.decode.sampling import Sampling
from gptcli.errors import UsageError, as_given

Overflow = Literal["slide", "stop"]
Speculation = Literal["auto", "lookup", "self", "off"]
MAX_DRAFT_TOKENS = 1024
MAX_NEW_TOKENS = 2**31 - 1  # a year of text


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of one or more completions. Raises `UsageError` for invalid values.

    Decoding is greedy by default. `temperature`, `top_k`, `top_p`, `min_p` or `num_samples` above 1 turn on
    sampling, with temperature 1 if none is given. Temperature 0 is greedy. The penalties and bans change the
    logits before that, of greedy decoding as well.
    """

    max_new_tokens: int = 50
    stops: tuple[str, ...] = ()  # strings that end a completion and are not part of it
    ignore_eos: bool = False  # go on past <|endoftext|>
    overflow: Overflow = "slide"  # past the context length: slide the window, or stop
    plain_prompt: bool = False  # take <|endoftext|> in the prompt as ordinary text
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    num_samples: int = 1
    seed: int = 123
    repetition_penalty: float = 1.0  # above 1: tokens of prompt and completion become less probable
    frequency_penalty: float = 0.0  # subtracted from a token's logit for each time it was generated
    presence_penalty: float = 0.0  # subtracted once if the token was generated
    no_repeat_ngram: int = 0  # no sequence of so many tokens occurs twice; 0: any may
    bans: tuple[str, ...] = ()  # texts that are not generated as their own tokens
    logprobs: bool = False  # the model's natural log-probability of each token, before any of the above
    use_cache: bool = True  # False: recompute all keys and values for each token, as the tutorial does
    speculation: Speculation = "auto"
    draft_tokens: int | None = None  # the most draft tokens to verify at once; None: as many as pay

    def __post_init__(self) -> None:
        for name in ("stops", "bans"):
            texts = getattr(self, name)
            object.__setattr__(self, name, (texts,) if isinstance(texts, str) else tuple(texts))
        if not 0 <= self.max_new_tokens <= MAX_NEW_TOKENS:
            raise UsageError(
                f"--max-new-tokens {self.max_new_tokens}: expected a number from 0 to {MAX_NEW_TOKENS}"
            )
        if self.num_samples < 1:
            raise UsageError(f"--num-samples {self.num_samples}: expected 1 or more")
        if "" in self.stops:
            raise UsageError("--stop '': expected a text that is not empty")
        if "" in self.bans:
            raise UsageError("--ban '': expected a text that is not empty")
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise UsageError(
                f"--draft-tokens {self.draft_tokens}: expected a number from 1 to {MAX_DRAFT_TOKENS}"
            )
        if self.overflow not in ("slide", "stop"):
            raise UsageError(f"--overflow {self.overflow!r}: expected slide or stop")
        if self.speculation not in ("auto", "lookup", "self", "off"):
            raise UsageError(f"--speculate {self.speculation!r}: expected auto, lookup, self or off")
        self._check_penalties()
        _ = self.sampling  # raises for faults of its values

    @property
    def change_logits(self) -> bool:
        """Return whether penalties or bans change the logits."""
        penalties = self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty
        return bool(penalties or self.no_repeat_ngram or self.bans)

    @cached_property
    def sampling(self) -> Sampling:
        """Return the distribution that tokens are drawn from."""
        temperature = self.temperature
        if temperature is None:
            is_given = any(value is not None for value in (self.top_k, self.top_p, self.min_p))
            temperature = 1.0 if is_given or self.num_samples > 1 else 0.0
        return Sampling(temperature, self.top_k, self.top_p, self.min_p or 0.0)

    def _check_penalties(self) -> None:
        if not 0.01 <= self.repetition_penalty <= 100:
            raise UsageError(
                f"--repetition-penalty {as_given(self.repetition_penalty)}: expected a number from 0.01 to"
                " 100 (1 is none)"
            )
        for name, value in (
            ("--frequency-penalty", self.frequency_penalty),
            ("--presence-penalty", self.presence_penalty),
        ):
            if not -2 <= value <= 2:
                raise UsageError(f"{name} {as_given(value)}: expected a number from -2 to 2 (0 is none)")
        if self.no_repeat_ngram < 0:
            raise UsageError(
                f"--no-repeat-ngram {self.no_repeat_ngram}: expected 1 or more, or 0 for no rule"
            )
