"""The options of decoding, as one frozen record."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gptcli.decode.sampling import Sampling
from gptcli.errors import UsageError

Overflow = Literal["slide", "stop"]
Speculation = Literal["auto", "lookup", "self", "off"]
MAX_DRAFT_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of one or more completions. Raises `UsageError` for invalid values.

    Decoding is greedy by default. `temperature`, `top_k`, `top_p` or `num_samples` above 1 turn on sampling,
    with temperature 1 if none is given. Temperature 0 is greedy.
    """

    max_new_tokens: int = 50
    stops: tuple[str, ...] = ()  # strings that end a completion and are not part of it
    ignore_eos: bool = False  # go on past <|endoftext|>
    overflow: Overflow = "slide"  # past the context length: slide the window, or stop
    plain_prompt: bool = False  # take <|endoftext|> in the prompt as ordinary text
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_samples: int = 1
    seed: int = 123
    logprobs: bool = False  # the natural log-probability of each token, before any temperature
    use_cache: bool = True  # False: recompute all keys and values for each token, as the tutorial does
    speculation: Speculation = "auto"
    draft_tokens: int | None = None  # the most draft tokens to verify at once; None: as many as pay

    def __post_init__(self) -> None:
        stops = (self.stops,) if isinstance(self.stops, str) else tuple(self.stops)
        object.__setattr__(self, "stops", stops)
        if self.max_new_tokens < 0:
            raise UsageError(f"--max-new-tokens {self.max_new_tokens}: expected 0 or more")
        if self.num_samples < 1:
            raise UsageError(f"--num-samples {self.num_samples}: expected 1 or more")
        if "" in self.stops:
            raise UsageError("--stop '': expected a text that is not empty")
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise UsageError(
                f"--draft-tokens {self.draft_tokens}: expected a number from 1 to {MAX_DRAFT_TOKENS}"
            )
        if self.overflow not in ("slide", "stop"):
            raise UsageError(f"--overflow {self.overflow!r}: expected slide or stop")
        if self.speculation not in ("auto", "lookup", "self", "off"):
            raise UsageError(f"--speculate {self.speculation!r}: expected auto, lookup, self or off")
        _ = self.sampling  # raises for faults of its values

    @cached_property
    def sampling(self) -> Sampling:
        """Return the distribution that tokens are drawn from."""
        temperature = self.temperature
        if temperature is None:
            samples = self.top_k is not None or self.top_p is not None or self.num_samples > 1
            temperature = 1.0 if samples else 0.0
        return Sampling(temperature, self.top_k, self.top_p)
