"""Samplers choose the next token from the logits: the largest, or a random one."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from gptcli.decode.engine import Array
from gptcli.errors import UsageError


class Sampler(Protocol):
    """Chooses the tokens of one completion."""

    is_greedy: bool

    def sample(self, logits: Array) -> int:
        """Return the id of the next token, given finite float32 logits [V]."""


class GreedySampler:
    """Takes the token with the largest logit; of equal ones that with the lowest id."""

    is_greedy = True

    def sample(self, logits: Array) -> int:
        """Return the id of the largest logit of [V]."""
        return int(logits.argmax())


GREEDY = GreedySampler()


@dataclass(frozen=True)
class Sampling:
    """The distribution to sample from: logits over `temperature`, cut to `top_k` and to the nucleus `top_p`.

    Temperature 0 is greedy. Raises `UsageError` for invalid values. Sources: top-k, Fan et al. 2018,
    "Hierarchical Neural Story Generation"; top-p, Holtzman et al. 2020, "The Curious Case of Neural Text
    Degeneration".
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise UsageError(f"--temperature {self.temperature:g}: expected 0 (greedy) or a number above 0")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k {self.top_k}: expected 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p:g}: expected a number above 0 and up to 1")

    def sampler(self, seed: int, index: int) -> Sampler:
        """Return the sampler of sample `index`; a seed gives the same tokens on every device."""
        return GREEDY if self.temperature == 0 else RandomSampler(self, seed, index)

    def probabilities(self, logits: Any) -> Any:
        """Return the probabilities to sample from, a float32 tensor [V] with sum 1, for the logits [V]."""
        scaled = logits.float() / self.temperature  # [V]
        if self.top_k is not None and self.top_k < len(scaled):
            least = scaled.topk(self.top_k).values[-1]
            scaled = scaled.masked_fill(scaled < least, -math.inf)
        if self.top_p is not None:
            ordered, order = scaled.sort(descending=True, stable=True)  # [V] each
            probabilities = ordered.softmax(-1)
            before = probabilities.cumsum(-1) - probabilities  # the total of the more probable ones
            scaled[order[before >= self.top_p]] = -math.inf  # the first to reach top_p stays
        return scaled.softmax(-1)


class RandomSampler:
    """Draws tokens from a distribution with a generator of its own."""

    is_greedy = False

    def __init__(self, sampling: Sampling, seed: int, index: int) -> None:
        import torch  # only for its generator: greedy decoding needs no torch

        self._sampling = sampling
        self._generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)

    def sample(self, logits: Array) -> int:
        """Return an id drawn from the distribution of the logits [V]."""
        import torch

        probabilities = self._sampling.probabilities(torch.from_numpy(logits))  # [V]
        return int(torch.multinomial(probabilities, 1, generator=self._generator))
